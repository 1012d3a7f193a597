"""`dcpcse.Trainer` and `dcpcse.TrainingArguments`: those of training, with messages in the words of Python."""

from dcpcse.api.words import python_words
from dcpcse.training import arguments, trainer

_in_python_words = python_words(train_file="train_dataset")


class TrainingArguments(arguments.TrainingArguments):
    __doc__ = arguments.TrainingArguments.__doc__
    __new__ = _in_python_words(arguments.TrainingArguments.__new__)
    __post_init__ = _in_python_words(arguments.TrainingArguments.__post_init__)


class Trainer(trainer.Trainer):
    __doc__ = trainer.Trainer.__doc__
    __init__ = _in_python_words(trainer.Trainer.__init__)
    train = _in_python_words(trainer.Trainer.train)
    evaluate = _in_python_words(trainer.Trainer.evaluate)
    save_model = _in_python_words(trainer.Trainer.save_model)
