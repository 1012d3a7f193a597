"""The recorded encoders of public_code/, written once."""

import pytest
from recorded import Bench, write_encoders


@pytest.fixture(scope="session")
def bench(tmp_path_factory) -> Bench:
    desk = tmp_path_factory.mktemp("public-code")
    return Bench(write_encoders(desk), desk)
