"""The bodies of requests, and the checks of their fields; every mistake is an ApiError that names the field."""

from collections.abc import Sequence
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, FailFast, Field, ValidationError, model_validator
from typing_extensions import TypeAliasType

from dcpcse.serving.errors import ApiError
from dcpcse.utils.errors import did_you_mean, shown

# With FailFast, a list of a million wrong items is one error. Members of a union must be hashable, which it is not.
Strings = TypeAliasType("Strings", Annotated[list[str], FailFast()])
Ids = TypeAliasType("Ids", Annotated[list[int], FailFast()])
ListsOfIds = TypeAliasType("ListsOfIds", Annotated[list[Ids], FailFast()])

MOST_HITS = 1_000
"""Maximum number of sentences that a search returns for a query."""

NAME = "a name, which is a text"


class Body(BaseModel):
    """The body of a request. The description of a field says what it must be, for messages.

    A field that has a default may be null, which means the default, as in OpenAI's API.
    """

    model_config = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False, hide_input_in_errors=True)

    @model_validator(mode="before")
    @classmethod
    def _without_nulls(cls, body: Any) -> Any:
        if not isinstance(body, dict):
            return body
        optional = {name for name, field in cls.model_fields.items() if not field.is_required()}
        return {name: value for name, value in body.items() if value is not None or name not in optional}


class EmbeddingsBody(Body):
    """POST /v1/embeddings, as in OpenAI's API; `truncate` and `normalize` are additions."""

    input: str | Strings | Ids | ListsOfIds = Field(
        description="a text, a list of texts, a list of token ids, or a list of such lists"
    )
    model: str = Field(description=NAME)
    encoding_format: Literal["float", "base64"] = Field("float", description='"float" or "base64"')
    dimensions: int | None = Field(None, ge=1, description="a whole number from 1 to the dimension of the model")
    user: str | None = Field(None, description="a text")
    truncate: bool = Field(False, description="true or false")
    normalize: bool | None = Field(None, description="true or false")


class SimilarityBody(Body):
    """POST /similarity: the cosines of each text of `a` with each text of `b`."""

    model: str = Field(description=NAME)
    a: str | Strings = Field(description="a text or a list of texts")
    b: str | Strings = Field(description="a text or a list of texts")
    truncate: bool = Field(False, description="true or false")


class SearchBody(Body):
    """POST /search: the sentences of an index that are nearest to each query."""

    index: str = Field(description=NAME)
    query: str | Strings = Field(description="a text or a list of texts")
    top_k: int = Field(5, ge=1, le=MOST_HITS, description=f"a whole number from 1 to {MOST_HITS}")
    threshold: float | None = Field(None, ge=-1, le=1, description="a number from -1 to 1, as cosines are")
    truncate: bool = Field(False, description="true or false")


class AdapterBody(Body):
    """POST /adapters: a folder inside --adapter_root, which becomes an adapter or replaces the one of this name."""

    name: str = Field(description=NAME)
    folder: str = Field(description="the path of a folder inside --adapter_root")


BodyT = TypeVar("BodyT", bound=Body)


def parse_body(kind: type[BodyT], body: bytes) -> BodyT:
    """Return the parsed body of a request. Raises ApiError for anything that is not valid JSON of this form."""
    try:
        return kind.model_validate_json(body)
    except ValidationError as error:
        problem = _clearest(error.errors(include_url=False, include_input=False))
    except (ValueError, RecursionError) as error:
        raise ApiError(400, "the body is not valid JSON in UTF-8") from error
    field = str(problem["loc"][0]) if problem["loc"] else None
    if problem["type"] == "json_invalid":
        raise ApiError(400, f"the body is not valid JSON in UTF-8: {problem['ctx']['error']}")
    if field is None:
        raise ApiError(400, "the body must be a JSON object")
    fields = kind.model_fields
    if problem["type"] == "extra_forbidden":
        hint = did_you_mean(field, fields)
        raise ApiError(
            400, f"{shown(field)} is no field of this request; {hint or 'the fields are: ' + ', '.join(fields)}",
            param=field[:60], code="unknown_parameter",
        )  # fmt: skip
    allowed = fields[field].description
    if problem["type"] == "missing":
        raise ApiError(400, f"{field} is missing; give {allowed}", param=field, code="missing_required_parameter")
    raise ApiError(400, f"{field} must be {allowed}", param=field)


def _clearest(errors: Sequence[Any]) -> Any:
    """Return the error to report: an unknown field is often the misspelled name of one that is missing."""
    return next((error for error in errors if error["type"] == "extra_forbidden"), errors[0])


def texts_of(value: str | Sequence[Any], param: str, most: int) -> list[Any]:
    """Return a text or a list of token ids as a list of one, and other lists as they are.

    most: the maximum number of texts. Raises ApiError for an empty list or too many texts.
    """
    if isinstance(value, str):
        return [value]
    if not value:
        raise ApiError(400, f"{param} is an empty list; give at least one text", param=param)
    texts = [list(value)] if isinstance(value[0], int) else list(value)
    if len(texts) > most:
        raise ApiError(400, f"{param} has {len(texts)} texts; at most {most} are allowed in a request", param=param)
    return texts
