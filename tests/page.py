"""A report as a browser's parser reads it: whether it is whole, and what its tables say."""

from collections.abc import Iterator
from html.parser import HTMLParser

VOID = {"meta", "br", "img", "input", "link", "hr", "col", "source", "area", "base", "embed", "wbr", "track"}
LOADING = {"src", "srcset", "data", "poster", "action", "formaction", "background", "cite", "xlink:href"}


class Element:
    """An element with its children, which are elements and texts."""

    def __init__(self, name: str, attributes: dict[str, str | None]) -> None:
        self.name, self.attributes, self.children = name, attributes, []

    def all(self, name: str | None = None) -> "Iterator[Element]":
        """Elements below, in order; of one name if given."""
        for child in self.children:
            if isinstance(child, Element):
                if name in (None, child.name):
                    yield child
                yield from child.all(name)

    @property
    def text(self) -> str:
        return "".join(child if isinstance(child, str) else child.text for child in self.children)


class Page(HTMLParser):
    """Parses at once; fails at an end tag that closes another element, and at one that is missing."""

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

    def handle_startendtag(self, tag, attrs):
        self._open[-1].children.append(Element(tag, dict(attrs)))

    def handle_endtag(self, tag):
        assert self._open[-1].name == tag, f"</{tag}> closes <{self._open[-1].name}>"
        self._open.pop()

    def handle_data(self, data):
        self._open[-1].children.append(data)

    def section(self, name: str) -> Element:
        (found,) = [one for one in self.root.all("section") if one.attributes["id"] == name]
        return found

    def notes(self, name: str) -> list[str]:
        """The visible lines of a section about what is not there."""
        return [one.text for one in self.section(name).all("p") if one.attributes.get("class") == "note"]

    def table(self, caption: str) -> list[list[Element]]:
        """Rows of cells, headers included, of the one table whose caption begins so."""
        captions = {table: next(table.all("caption")).text for table in self.root.all("table")}
        (found,) = [table for table, text in captions.items() if text.startswith(caption)]
        return [[cell for cell in row.all() if cell.name in ("th", "td")] for row in found.all("tr")]

    def texts(self, caption: str) -> list[list[str]]:
        return [[cell.text for cell in row] for row in self.table(caption)]

    def bold(self, caption: str) -> set[str]:
        return {strong.text for row in self.table(caption) for cell in row for strong in cell.all("strong")}


def require_whole(text: str) -> Page:
    """The page, if it needs nothing but itself, and can be used without seeing it."""
    page = Page(text)
    elements = list(page.root.all())
    names = {element.name for element in elements}
    assert not names & {"script", "img", "link", "iframe", "object", "embed", "base", "form"}
    ids = [element.attributes["id"] for element in elements if "id" in element.attributes]
    assert len(set(ids)) == len(ids)
    for element in elements:
        assert not LOADING & set(element.attributes) or element.name == "image"
        assert not [name for name in element.attributes if name.startswith("on")]
        target = element.attributes.get("href")
        # Pictures inside of pictures (colour bars) carry their bytes themselves.
        assert target is None or target.startswith("data:image/png;base64,") or target.removeprefix("#") in ids
        for name in ("aria-labelledby", "for"):
            assert element.attributes.get(name, ids[0]) in ids
        for value in element.attributes.values():
            for part in (value or "").split("url(")[1:]:
                assert part.startswith("#") and part[1:].split(")")[0] in ids
    (html,) = page.root.all("html")
    assert html.attributes["lang"] == "en"
    assert [element for element in elements if element.name == "title"]
    style = "".join(element.text for element in page.root.all("style"))
    assert "url(" not in style and "@import" not in style
    assert len(list(page.root.all("h1"))) == 1
    for table in page.root.all("table"):
        assert next(table.all("caption")).text
        assert all(cell.attributes["scope"] in ("col", "row", "colgroup") for cell in table.all("th"))
        width = {sum(int(cell.attributes.get("colspan", 1)) for cell in row.children) for row in table.all("tr")}
        assert len(width) == 1, next(table.all("caption")).text
    for svg in page.root.all("svg"):
        assert svg.attributes["role"] == "img" and len(svg.attributes["aria-label"]) > 20
    return page
