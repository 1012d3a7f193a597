"""Options of `dcpcse serve`."""

from dataclasses import dataclass

from dcpcse.encoders.encode_options import PrecisionOptions
from dcpcse.utils.errors import UserError
from dcpcse.utils.option_fields import option

KEY_VARIABLE = "DCPCSE_API_KEY"
"""Name of the environment variable that contains the API key of a server."""


@dataclass
class ServingArguments(PrecisionOptions):
    """Options for the served models, the address, the keys and the limits of a server.

    The inherited options of encoding apply to all requests that do not set them.
    """

    _argument_group_name = "server"

    adapters: list[str] | None = option(None, "Output folders of train.py on this encoder; NAME=FOLDER sets a name.")
    name: str | None = option(None, "Name of the plain encoder as a model. Default: the name of its folder.")
    index: list[str] | None = option(None, "Folders of saved indexes for POST /search; NAME=FOLDER sets a name.")
    demo_sentences: str | None = option(None, "Text file whose nearest sentences the page /demo shows; needs gradio.")
    host: str = option("127.0.0.1", "Address to listen at; an address beyond this machine requires an API key.")
    port: int = option(
        8080, "Port to listen at; 0 for any free one, which the log contains.", at_least=0, at_most=65_535
    )
    workers: int = option(1, "Number of processes, each with its own copy of the encoder; for CPUs.", at_least=1)
    ray: str | None = option(
        None,
        "Serve on the Ray cluster at this address ('auto': the cluster of this machine; 'local': start one here); "
        "--workers is then the number of replicas.",
    )
    api_key_file: str | None = option(
        None, f"File of API keys, one per line; a request must have one of them. Default: the variable {KEY_VARIABLE}."
    )
    watch: str | None = option(
        None, "Folder whose subfolders are adapters: new and changed ones are loaded, deleted ones removed."
    )
    adapter_root: str | None = option(None, "Folder that contains the adapters which POST /adapters may load.")
    admin_token_file: str | None = option(
        None, "File with the token for POST /adapters and DELETE /adapters/NAME, which are off without this option."
    )
    truncate: bool = option(
        False, "Truncate long texts unless the request sets truncate. Default: long texts are an error."
    )
    max_adapters: int | None = option(
        None,
        "Maximum number of adapters in memory; the least recently used one is removed. Default: no maximum.",
        at_least=1,
    )
    max_batch_tokens: int | None = option(
        None, "Maximum number of tokens of a batch. Default: 2,048 on a CPU, 32,768 on a GPU.", at_least=1
    )
    max_wait_ms: float = option(
        10.0, "Milliseconds that a request waits for others to share its batch.", at_least=0, at_most=60_000
    )
    max_queue: int = option(256, "Maximum number of unanswered requests; further ones get status 429.", at_least=1)
    max_inputs: int = option(2_048, "Maximum number of texts of a request.", at_least=1)
    max_body_bytes: int = option(2 * 2**20, "Maximum size of a request's body.", at_least=1)
    max_connections: int = option(
        1_000, "Maximum number of open connections; of more, the oldest idle one is closed.", at_least=1
    )
    time_limit: float = option(
        30.0, "Maximum seconds until a request is answered, and of the end after SIGTERM.", above=0, at_most=3_600
    )

    def check(self) -> None:
        """Raise UserError if an option excludes another given option or needs an option that is missing."""
        if bool(self.admin_token_file) != bool(self.adapter_root):
            missing, option = ("adapter_root", "admin_token_file")[:: 1 if self.admin_token_file else -1]
            raise UserError(f"--{option} needs --{missing}; add it, or leave --{option} out")
        if self.admin_token_file and (self.workers > 1 or self.ray):
            several = "--ray" if self.ray else "--workers"
            raise UserError(f"--admin_token_file changes one process only; with {several}, use --watch FOLDER instead")
        if self.ray and not self.port:
            raise UserError("--port 0: Ray Serve needs a port from 1 to 65535; give one")
