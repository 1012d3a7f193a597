"""SentEval's classifiers and protocols one fit after another, written plainly: what the stacked ones must equal."""

import copy

import numpy as np
import torch
from sklearn.model_selection import StratifiedKFold
from torch import nn

PENALTIES = (1e-5, 1e-4, 1e-3, 1e-2)
OPTIMIZERS = ("Adadelta", "Adagrad", "Adam", "Adamax", "ASGD", "RMSprop", "SGD")
OPTIMIZERS = {name.lower(): getattr(torch.optim, name) for name in OPTIMIZERS}


def noisy_data(count, width, classes, noise=1.0, seed=0):
    """Features (count, width) float64 and labels (count,) that a linear classifier finds in part only."""
    random = np.random.default_rng(seed)
    features = random.standard_normal((count, width))
    scores = features @ random.standard_normal((width, classes)) / np.sqrt(width)
    return features, (scores + noise * random.standard_normal((count, classes))).argmax(1)


class PlainClassifier:
    """One classifier with SentEval's seeds, permutations and early stopping; global random numbers throughout."""

    def __init__(self, width, classes, penalty, settings, seed=1111, dtype=torch.float64):
        np.random.seed(seed)
        torch.manual_seed(seed)
        self.settings = settings
        if settings.nhid:
            layers = [nn.Linear(width, settings.nhid), nn.Dropout(settings.dropout), nn.Sigmoid()]
            self.model = nn.Sequential(*layers, nn.Linear(settings.nhid, classes)).to(dtype)
        else:
            self.model = nn.Sequential(nn.Linear(width, classes)).to(dtype)
        self.loss = nn.CrossEntropyLoss()
        name, *options = settings.optim.split(",")
        options = {key: float(value) for key, value in (option.split("=") for option in options)}
        self.optimizer = OPTIMIZERS[name](self.model.parameters(), weight_decay=penalty, **options)

    def fit(self, features, labels, dev=None, share=None):
        """dev: features and labels of the dev set; share: how much of the training set becomes it instead."""
        if dev is None:
            order = np.random.permutation(len(features))
            cut = int(share * len(features))
            dev = features[order[:cut]], labels[order[:cut]]
            features, labels = features[order[cut:]], labels[order[cut:]]
        best, misses, epochs, going = -1, 0, 0, True
        kept = None
        while going and epochs <= self.settings.max_epoch:
            for _ in range(self.settings.epoch_size):
                self.epoch(features, labels)
            epochs += self.settings.epoch_size
            accuracy = self.score(*dev)
            if accuracy > best:
                best, kept = accuracy, copy.deepcopy(self.model)
            else:
                going = misses < self.settings.tenacity
                misses += 1
        self.model, self.dev_accuracy, self.epochs = kept, best, epochs
        return self

    def epoch(self, features, labels):
        self.model.train()
        order = np.random.permutation(len(features))
        for start in range(0, len(features), self.settings.batch_size):
            rows = torch.from_numpy(order[start : start + self.settings.batch_size])
            self.optimizer.zero_grad()
            self.loss(self.model(features[rows]), labels[rows]).backward()
            self.optimizer.step()

    def predict(self, features):
        self.model.eval()
        with torch.no_grad():
            return self.model(features).argmax(1)

    def score(self, features, labels):
        return (self.predict(features) == labels).sum().item() / len(labels)


def torch_fit(classes, settings, seed=1111):
    """fit(train, penalty, dev=None, share=None) → a trained classifier; train, dev: (features, labels)."""

    def fit(train, penalty, **dev):
        features, _ = train
        return PlainClassifier(features.shape[1], classes, penalty, settings, seed, features.dtype).fit(*train, **dev)

    return fit


def search(folds, fit, grid):
    """(best mean dev accuracy x 100, its penalty) of folds, each (features, labels) of train and of dev."""
    scores = [round(100 * np.mean([fit(train, one, dev=dev).score(*dev) for train, dev in folds]), 2) for one in grid]
    return max(scores), grid[int(np.argmax(scores))]


def cut(features, labels, k, seed=1111):
    """The folds, as (features, labels) of train and of dev."""
    splitter = StratifiedKFold(k, shuffle=True, random_state=seed)
    return [tuple((features[rows], labels[rows]) for rows in pair) for pair in splitter.split(features, labels)]


def nested_kfold(features, labels, k, fit, grid=PENALTIES):
    """(dev accuracy, test accuracy) x 100, rounded as published; the test accuracies and penalties of the folds."""
    outcomes = []
    for train, test in cut(features, labels, k):
        dev, best = search(cut(*train, k), fit, grid)
        outcomes.append((dev, round(100 * fit(train, best, share=0.05).score(*test), 2), best))
    devs, tests, penalties = zip(*outcomes, strict=True)
    return round(np.mean(devs), 2), round(np.mean(tests), 2), tests, penalties


def kfold(train, test, k, fit, grid=PENALTIES, seed=1111):
    """(dev accuracy, test accuracy) x 100, the penalty, and the predictions on test."""
    dev, best = search(cut(*train, k, seed), fit, grid)
    classifier = fit(train, best, share=0.05)
    return dev, round(100 * classifier.score(*test), 2), best, classifier.predict(test[0])


def split(train, dev, test, fit, grid=PENALTIES):
    """train, dev, test: (features, labels); (dev accuracy, test accuracy) x 100, and the penalty."""
    score, best = search([(train, dev)], fit, grid)
    return score, round(100 * fit(train, best, dev=dev).score(*test), 2), best
