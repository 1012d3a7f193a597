"""SentEval's classifiers and protocols one fit after another, written plainly: what the stacked ones must equal."""

import copy

import numpy as np
import torch
from sklearn.model_selection import StratifiedKFold
from torch import nn

PENALTIES = (1e-5, 1e-4, 1e-3, 1e-2)
OPTIMIZERS = {
    "adadelta": torch.optim.Adadelta,
    "adagrad": torch.optim.Adagrad,
    "adam": torch.optim.Adam,
    "adamax": torch.optim.Adamax,
    "asgd": torch.optim.ASGD,
    "rmsprop": torch.optim.RMSprop,
    "sgd": torch.optim.SGD,
}


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


def nested_kfold(features, labels, classes, k, settings, seed=1111):
    """(dev accuracy, test accuracy) x 100, rounded as published."""
    devs, tests = [], []
    splitter = StratifiedKFold(k, shuffle=True, random_state=1111)
    for train, test in splitter.split(features, labels):
        scores = []
        for penalty in PENALTIES:
            inner = []
            for part, held_out in splitter.split(features[train], labels[train]):
                part, held_out = train[part], train[held_out]
                classifier = PlainClassifier(features.shape[1], classes, penalty, settings, seed, features.dtype)
                classifier.fit(features[part], labels[part], (features[held_out], labels[held_out]))
                inner.append(classifier.score(features[held_out], labels[held_out]))
            scores.append(round(100 * np.mean(inner), 2))
        devs.append(max(scores))
        best = PENALTIES[int(np.argmax(scores))]
        classifier = PlainClassifier(features.shape[1], classes, best, settings, seed, features.dtype)
        classifier.fit(features[train], labels[train], share=0.05)
        tests.append(round(100 * classifier.score(features[test], labels[test]), 2))
    return round(np.mean(devs), 2), round(np.mean(tests), 2)


def kfold(train, train_labels, test, test_labels, classes, k, settings, seed=1111):
    """(dev accuracy, test accuracy) x 100 and the predictions on test."""
    splitter = StratifiedKFold(k, shuffle=True, random_state=seed)
    scores = []
    for penalty in PENALTIES:
        inner = []
        for part, held_out in splitter.split(train, train_labels):
            classifier = PlainClassifier(train.shape[1], classes, penalty, settings, seed, train.dtype)
            classifier.fit(train[part], train_labels[part], (train[held_out], train_labels[held_out]))
            inner.append(classifier.score(train[held_out], train_labels[held_out]))
        scores.append(round(100 * np.mean(inner), 2))
    best = PENALTIES[int(np.argmax(scores))]
    classifier = PlainClassifier(train.shape[1], classes, best, settings, seed, train.dtype)
    classifier.fit(train, train_labels, share=0.05)
    return max(scores), round(100 * classifier.score(test, test_labels), 2), classifier.predict(test).numpy()


def split(train, dev, test, classes, settings, seed=1111):
    """train, dev, test: (features, labels); (dev accuracy, test accuracy) x 100."""
    scores = []
    for penalty in PENALTIES:
        classifier = PlainClassifier(train[0].shape[1], classes, penalty, settings, seed, train[0].dtype)
        scores.append(round(100 * classifier.fit(*train, dev).score(*dev), 2))
    best = PENALTIES[int(np.argmax(scores))]
    classifier = PlainClassifier(train[0].shape[1], classes, best, settings, seed, train[0].dtype).fit(*train, dev)
    return max(scores), round(100 * classifier.score(*test), 2)
