# Sourced in the repository root: makes .venv if there is none and installs this project with its pinned requirements.
# Sets `python`.
python=.venv/bin/python
if [ ! -x "$python" ]; then
    python3 -m venv .venv
fi
stamp=.venv/installed
if [ ! -f "$stamp" ] || [ requirements.txt -nt "$stamp" ] || [ setup.py -nt "$stamp" ]; then
    echo "installing into .venv (once)"
    "$python" -m pip install --quiet --disable-pip-version-check --requirement requirements.txt
    "$python" -m pip install --quiet --disable-pip-version-check --no-deps --editable .
    touch "$stamp"
fi
