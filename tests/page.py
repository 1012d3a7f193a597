"""A strict parser of HTML pages: tags must be closed, and pages must not load anything."""

import base64
from collections.abc import Iterator
from html.parser import HTMLParser
from xml.etree import ElementTree

VOID = {"meta", "img"}
FORBIDDEN = {"script", "link", "iframe", "object", "embed", "base", "form"}
LOADING = {"srcset", "data", "poster", "action", "formaction", "background", "cite", "xlink:href"}
SVG = "data:image/svg+xml;base64,"


class Element:
    """An element with its children, which are elements and strings."""

    def __init__(self, name: str, attributes: dict[str, str | None]) -> None:
        self.name, self.attributes, self.children = name, attributes, []

    def all(self, name: str | None = None) -> "Iterator[Element]":
        """Yield the elements below this one, in order; only those with the name, if given."""
        for child in self.children:
            if isinstance(child, Element):
                if name in (None, child.name):
                    yield child
                yield from child.all(name)

    @property
    def text(self) -> str:
        return "".join(child if isinstance(child, str) else child.text for child in self.children)

    @property
    def svg_texts(self) -> list[str]:
        """The texts in the SVG of an image."""
        root = ElementTree.fromstring(base64.b64decode(self.attributes["src"].removeprefix(SVG)))
        return ["".join(node.itertext()) for node in root.iter() if node.tag.endswith("}text")]


class Page(HTMLParser):
    """Parses at once; fails if an end tag is missing or closes a different element."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.root = Element("", {})
        self._open = [self.root]
        self.feed(text)
        self.close()
        assert self._open == [self.root], f"not closed: {[element.name for element in self._open]}"

    def handle_starttag(self, tag, attrs):
        assert len({name for name, _ in attrs}) == len(attrs), f"an attribute twice in {tag}"
        element = Element(tag, dict(attrs))
        self._open[-1].children.append(element)
        if tag not in VOID:
            self._open.append(element)

    def handle_endtag(self, tag):
        assert self._open[-1].name == tag, f"</{tag}> closes <{self._open[-1].name}>"
        self._open.pop()

    def handle_data(self, data):
        self._open[-1].children.append(data)

    def section(self, name: str) -> Element:
        (found,) = [one for one in self.root.all("section") if one.attributes["id"] == name]
        return found

    def notes(self, name: str) -> list[str]:
        return [one.text for one in self.section(name).all("p") if one.attributes.get("class") == "note"]

    def table(self, caption: str) -> list[list[Element]]:
        """The rows of cells, headers included, of the one table whose caption starts like this."""
        (found,) = [table for table in self.root.all("table") if next(table.all("caption")).text.startswith(caption)]
        return [[cell for cell in row.all() if cell.name in ("th", "td")] for row in found.all("tr")]

    def texts(self, caption: str) -> list[list[str]]:
        return [[cell.text for cell in row] for row in self.table(caption)]

    def bold(self, caption: str) -> list[str]:
        return [strong.text for row in self.table(caption) for cell in row for strong in cell.all("strong")]


def require_self_contained(text: str) -> Page:
    """Parse a report; check that it loads nothing, and that it is accessible without seeing it."""
    page = Page(text)
    elements = list(page.root.all())
    assert not FORBIDDEN & {element.name for element in elements}
    ids = [element.attributes["id"] for element in elements if "id" in element.attributes]
    assert len(set(ids)) == len(ids)
    for element in elements:
        assert not LOADING & set(element.attributes)
        assert not [name for name in element.attributes if name.startswith("on")]
        assert element.attributes.get("href", f"#{ids[0]}").removeprefix("#") in ids
        assert "url(" not in (element.attributes.get("style") or "")
        assert element.name == "img" or "src" not in element.attributes
    (style,) = page.root.all("style")
    assert "url(" not in style.text and "@import" not in style.text
    for table in page.root.all("table"):
        assert next(table.all("caption")).text
        rows = [[cell for cell in row.all() if cell.name in ("th", "td")] for row in table.all("tr")]
        assert len({sum(int(cell.attributes.get("colspan", 1)) for cell in row) for row in rows}) == 1
    for image in page.root.all("img"):
        assert image.attributes["src"].startswith(SVG) and image.svg_texts and len(image.attributes["alt"]) > 20
    return page
