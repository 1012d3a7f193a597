"""Logs are lines of JSON without paths, and a log that cannot be written stops nothing."""

import contextlib
import io
import json
import logging

from dcpcse.serving.monitoring import log_event, log_failure, structured_logs
from dcpcse.serving.requests import without_paths


def test_events_are_lines_of_json_without_paths_and_texts():
    stream = io.StringIO()
    with structured_logs(stream):
        log_event("adapter_loaded", adapter="reviews")
        logging.getLogger("dcpcse").warning("cannot read %s", "/home/somebody/models/reviews/dcpcse.json")
        try:
            raise ValueError("a text of a request")
        except ValueError as error:
            log_failure("request_failed", error, request="1")
            logging.getLogger("uvicorn.error").error("Exception in ASGI application", exc_info=error)
    lines = [json.loads(line) for line in stream.getvalue().splitlines()]
    assert [line["event"] for line in lines[:3]] == ["adapter_loaded", "cannot read dcpcse.json", "request_failed"]
    assert lines[2]["where"][0].startswith("test_logs.py:") and lines[2]["error"] == "ValueError"
    assert "a text of a request" not in stream.getvalue() and "somebody" not in stream.getvalue()


def test_a_full_disk_loses_lines_and_stops_nothing(capfd):
    with contextlib.suppress(OSError), open("/dev/full", "w", encoding="utf-8") as full, structured_logs(full):
        for _ in range(100):
            log_event("request")
    assert capfd.readouterr().err == ""


def test_paths_are_cut_to_their_last_part():
    kept = "and/or 3/4 of sentence-transformers/all-MiniLM-L6-v2"
    for message, expected in {
        "/srv/models/a is damaged": "a is damaged",
        "see '/srv/models/a/dcpcse.json': no": "see 'dcpcse.json': no",
        "../secret/a and ~/b/c and ./d": "a and c and d",
        kept: kept,
    }.items():
        assert without_paths(message) == expected
