# Sourced in the repository root: creates .venv if it does not exist and installs this project with pinned requirements.
# Reads `requirements`, the file to install (default: requirements.txt). Sets `python`.
python=.venv/bin/python
requirements=${requirements:-requirements.txt}
if [ ! -x "$python" ]; then
    python3 -m venv .venv
fi
stamp=.venv/installed-$requirements
if [ ! -f "$stamp" ] || [ -n "$(find requirements.txt requirements-dev.txt setup.py -newer "$stamp")" ]; then
    echo "installing $requirements into .venv (once)"
    "$python" -m pip install --quiet --disable-pip-version-check --requirement "$requirements"
    "$python" -m pip install --quiet --disable-pip-version-check --no-deps --editable .
    touch "$stamp"
fi
