"""`dcpcse reproduce search`: run the hyperparameter searches of the papers."""

from collections.abc import Sequence
from pathlib import Path

from dcpcse.cli.parse import parse_training
from dcpcse.experiments.hyperparameter_search import SEARCHES, Search, TrainingOptions, Trials
from dcpcse.utils.command_parser import CommandParser
from dcpcse.utils.console import notify, print_result
from dcpcse.utils.errors import UserError
from dcpcse.utils.files import require_writable
from dcpcse.utils.option_fields import Whole


def search_hyperparameters_command(argv: Sequence[str]) -> None:
    """Run `dcpcse reproduce search`. Raises UserError for mistakes of the user."""
    argv = list(argv)
    split = argv.index("--") if "--" in argv else len(argv)
    args = search_hyperparameters_parser().parse_args(argv[:split])
    search, folder = SEARCHES[args.search], Path(args.output_dir)
    if unknown := set(args.stages or ()) - set(search.stages):
        raise UserError(f"--stages {sorted(unknown)}: unknown; choose from {', '.join(search.stages)}")
    require_writable(folder, f"--output_dir {folder}")
    options, shared, columns = _options_of_tries(argv[split + 1 :], search)
    known = search.stages_for(columns)
    if left_out := sorted(set(args.stages or ()) - set(known)):
        fixed = ", ".join(f"--{name} {value}" for name, value in search.fixed_with_pairs[left_out[0]].items())
        raise UserError(
            f"--stages {left_out[0]!r}: the search {args.search} has this stage only for files with one column, but "
            f"{shared['train_file']} has {len(columns)} columns, so {fixed} is fixed; leave the stage out"
        )
    trials = Trials(folder, args.search, options, shared, args.limit)
    for name in args.stages or known:
        before = list(known)[: list(known).index(name)]
        if not trials.finish(name, known[name](trials.best_after(before))):
            notify(f"--limit {args.limit} reached; run the same command again to continue")
            break
    print_result(trials.table())
    trials.write_best()


def _options_of_tries(words: Sequence[str], search: Search) -> tuple[list[str], TrainingOptions, Sequence[str]]:
    """Return the options of train.py for all trials, as arguments and by name, and the columns of the data.

    Raises UserError as train.py would.
    """
    for option in ("--output_dir", "--overwrite_output_dir"):
        if any(word.split("=")[0] == option for word in words):
            raise UserError(f"the search sets {option} for every trial; remove the option after --")
    (model, data, run), names = parse_training([*words, "--output_dir", "unused"])
    # Imported after the options are checked, as these imports take seconds.
    from dcpcse.data.column_choice import chosen_columns
    from dcpcse.data.readers import open_file
    from dcpcse.data.tables import read_rows
    from dcpcse.training.eval_datasets import load_dev_tasks
    from dcpcse.training.options import require_valid

    require_valid((model, data, run), names)
    columns = read_rows(open_file(Path(data.train_files[0]), columns=chosen_columns(data.columns)))[0].names
    load_dev_tasks(data)
    measuring = {name: value for name, value in search.defaults_for(columns).items() if name not in names}
    words = [*words, *(word for name, value in measuring.items() for word in (f"--{name}", value))]
    parts, names = parse_training([*words, "--output_dir", "unused"])
    values = {name: value for part in parts for name, value in vars(part).items() if name in names}
    shared = {name: getattr(value, "value", value) for name, value in values.items() if name != "output_dir"}
    return words, shared, columns


def search_hyperparameters_parser() -> CommandParser:
    """Return the parser of `dcpcse reproduce search`. Options after -- are passed to train.py."""
    parser = CommandParser(
        prog="dcpcse reproduce search",
        description="Search hyperparameters on STS-B dev as the papers do. Options for train.py follow after --.",
    )
    add = parser.add_argument
    add("--search", choices=sorted(SEARCHES), required=True, help="The paper whose search to run.")
    add("--output_dir", required=True, help="Folder of the search and its trials. A search in it is resumed.")
    add("--stages", nargs="+", help="Run only these stages, in this order.")
    add("--limit", type=Whole(1), help="Maximum number of trials to start.")
    return parser
