"""Whitening and flow of finished embeddings: exactness, invertibility, likelihood."""

import numpy as np
import pytest
import torch

from dcpcse.evaluation.postprocessing import LOG_SCALE, Fitting, Flow, Whitening, fit_flow
from dcpcse.utils.errors import UserError


def anisotropic(count: int, dimension: int, seed: int = 0) -> np.ndarray:
    """Embeddings as encoders give them: a large common part, and a few directions that hold most of the variance."""
    random = np.random.default_rng(seed)
    mixing = random.normal(size=(dimension, dimension)) * np.geomspace(3, 0.05, dimension)
    return (random.normal(size=(count, dimension)) @ mixing.T + 5 * random.normal(size=dimension)).astype(np.float32)


# Whitening


def test_embeddings_are_white_and_their_cosines_are_those_of_an_inverse_square_root_of_the_covariance():
    """The oracle: Σ^(-1/2) by eigenvalues in float64; it differs by a rotation, which no cosine sees."""
    vectors, others = anisotropic(500, 16), anisotropic(50, 16, seed=1)
    exact = vectors.astype(np.float64)
    variances, directions = np.linalg.eigh(np.cov(exact, rowvar=False, bias=True))
    root = directions @ np.diag(variances**-0.5) @ directions.T
    expected = (others - exact.mean(0)) @ root
    found, white = Whitening.fit(vectors)(others), Whitening.fit(vectors)(vectors).astype(np.float64)
    np.testing.assert_allclose(white.mean(0), 0, atol=1e-4)
    np.testing.assert_allclose(np.cov(white, rowvar=False, bias=True), np.eye(16), atol=1e-4)

    def cosines(x):
        x = x / np.linalg.norm(x, axis=1, keepdims=True)
        return x @ x.T

    np.testing.assert_allclose(cosines(found), cosines(expected), atol=1e-5)


def test_fewer_dimensions_are_those_of_largest_variance():
    vectors = anisotropic(500, 16)
    full, few = Whitening.fit(vectors), Whitening.fit(vectors, 5)
    np.testing.assert_array_equal(few.matrix, full.matrix[:, :5])
    kept = np.var((vectors - few.mean) @ (few.matrix * np.linalg.norm(few.matrix, axis=0) ** -1), axis=0)
    assert (np.diff(kept) <= 0).all()


def test_directions_in_which_nothing_varies_are_left_out_and_said(caplog):
    vectors = anisotropic(500, 16)
    vectors[:, 3] = 0.25
    assert Whitening.fit(vectors)(vectors).shape == (500, 15)
    assert "keeps 15 of 16 dimensions" in caplog.text


# Flow


@torch.no_grad()
def inverse(flow: Flow, latent: torch.Tensor) -> torch.Tensor:
    """The embeddings (N, H) of latent vectors (N, H): each part of a flow is undone, the last one first."""
    parts = list(latent.split(flow.split_sizes, dim=1))
    x = latent.new_empty(len(latent), 0)
    for steps, part in zip(reversed(flow.levels), reversed(parts), strict=True):
        x = torch.cat([x, part], dim=1)
        for step in reversed(steps):
            shifting, shifted = x.split(step.coupling.sizes, dim=1)
            before = shifted - (step.coupling(torch.cat([shifting, shifted], dim=1))[:, shifting.shape[1] :] - shifted)
            x = torch.cat([shifting, before], dim=1).flip(1)
            x = x * (-LOG_SCALE * step.norm.log_scale).exp() - step.norm.shift
    return x


def test_channels_that_never_vary_do_not_blow_up():
    vectors = anisotropic(600, 32)
    vectors[:, [0, 5, 31]] = 0.25
    told = []
    flow = fit_flow(vectors, epochs=3, on_step=lambda step, steps, likelihood: told.append(likelihood))
    assert np.isfinite(told).all() and np.mean(told[-20:]) > np.mean(told[:20])
    given = torch.from_numpy(vectors)
    torch.testing.assert_close(inverse(flow, flow(given)), given, rtol=0, atol=1e-4)


def begun(dimension: int, **options) -> Flow:
    torch.manual_seed(0)
    flow = Flow(dimension, **options)
    for parameter in flow.parameters():
        torch.nn.init.normal_(parameter, std=0.1)
    return flow


@pytest.mark.parametrize("dimension", [8, 21])
def test_the_inverse_gives_the_embeddings_back(dimension):
    vectors = torch.from_numpy(anisotropic(300, dimension))
    flow = fit_flow(vectors.numpy(), epochs=2)
    torch.testing.assert_close(inverse(flow, flow(vectors)), vectors, rtol=0, atol=1e-4)


def test_the_log_determinant_is_that_of_the_jacobian():
    flow = begun(11).double()
    x = torch.randn(3, 11, dtype=torch.float64)
    jacobians = torch.stack([torch.autograd.functional.jacobian(lambda v: flow(v[None])[0], row) for row in x])
    gaussian = torch.distributions.Normal(0.0, 1.0).log_prob(flow(x)).sum(1)
    expected = gaussian + torch.linalg.slogdet(jacobians).logabsdet
    torch.testing.assert_close(flow.log_likelihood(x), expected, rtol=1e-9, atol=1e-9)


def test_the_density_integrates_to_one():
    flow = begun(2, levels=1, depth=2, width=4).double()
    axis = torch.linspace(-12, 12, 601, dtype=torch.float64)
    grid = torch.cartesian_prod(axis, axis)
    mass = flow.log_likelihood(grid).exp().sum() * (axis[1] - axis[0]) ** 2
    assert mass.item() == pytest.approx(1, abs=1e-3)


def test_the_likelihood_of_unseen_embeddings_rises():
    vectors, told = anisotropic(900, 32), []
    vectors, unseen = vectors[:600], torch.from_numpy(vectors[600:])
    few = fit_flow(vectors, epochs=1, batch_size=600)
    many = fit_flow(vectors, epochs=5, on_step=lambda *step: told.append(step))
    assert many.log_likelihood(unseen).mean() > few.log_likelihood(unseen).mean() + 1
    assert [step for step, *_ in told] == list(range(1, 5 * 38 + 1)) and {steps for _, steps, _ in told} == {5 * 38}
    assert np.mean([value for *_, value in told[-50:]]) > np.mean([value for *_, value in told[:50]])


def test_a_seed_gives_the_same_flow():
    vectors = anisotropic(200, 16)
    first, again, other = (fit_flow(vectors, seed=seed) for seed in (1, 1, 2))
    given = torch.from_numpy(vectors)
    assert torch.equal(first(given), again(given)) and not torch.equal(first(given), other(given))


def test_wrong_input_is_refused():
    for count, dimensions, there in ((10, 12, "9 of 16"), (500, 17, "16 of 16")):
        with pytest.raises(UserError, match=there):
            Whitening.fit(anisotropic(count, 16), dimensions)
    with pytest.raises(UserError, match="1 sentence"):
        fit_flow(anisotropic(1, 16))
    with pytest.raises(UserError, match="too small"):
        Flow(7)
    with pytest.raises(UserError, match="lower flow_learning_rate"):
        fit_flow(anisotropic(300, 16), learning_rate=1e6, epochs=3)
    fitting = Fitting("whitening", {"dimensions": None}, ("a", "b"), "nli.csv")
    with pytest.raises(UserError, match=r'fit_on="nli\.csv": some embeddings are not finite'):
        fitting.finish(lambda sentences: np.full((len(sentences), 4), np.nan))
