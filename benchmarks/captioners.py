"""UpDown and AdaptiveAttention beside ImageCaptioning.pytorch's own code: a training step and beam search, in one run.

    .venv/bin/python benchmarks/captioners.py --peer FOLDER [--rounds 5] [--threads 1]

FOLDER is a checkout of https://github.com/ruotianluo/ImageCaptioning.pytorch (its package `captioning` is imported from
there). Without it the rows are skipped. Sizes are those of its recipes: 9,487 words, width 512 everywhere. Features are
49 regions of 1,280 numbers. A training step is forward and backward of 10 images with 5 captions each; beam search has
50 images and a beam of 5, captions of up to 20 words.

UpDown has the same equations in both, so its weights are copied: gradients must be equal, and the captions (theirs lose
a place of the beam in the step after a caption ends, so a few may differ; scores of equal captions must be equal).
Their AdaAtt has three more projections than the paper, so there only the sizes are the same. CPU time (on more threads
wall-clock time), best of alternating rounds.
"""

from __future__ import annotations

import argparse
import importlib
import pickle
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import torch
from side_by_side import bare_cost, best_seconds, show

from tellapart.captioners.adaptive import AdaptiveAttention, AdaptiveAttentionSettings
from tellapart.captioners.updown import UpDown, UpDownSettings
from tellapart.decoding.search import n_best
from tellapart.decoding.settings import DecodingSettings
from tellapart.encoders.base import EncoderIdentity
from tellapart.text import END, PAD, START, Vocabulary

WIDTH = 512
WORDS = 9487
MOST_WORDS = 20
IDENTITY = EncoderIdentity("made-up", "0", "none", regions=49, width=1280)
Runs = tuple[Callable[[], Any], Callable[[], Any]]  # ours, theirs
SEARCH = DecodingSettings(beam=5, max_words=MOST_WORDS, block_unknown=False)


def open_peer(folder: Path) -> ModuleType:
    """Their module of attention models, without the others, which need packages that we do not have."""
    if not (folder / "captioning" / "models" / "AttModel.py").exists():
        sys.exit(f"{folder}: no captioning/models/AttModel.py; give a checkout of ImageCaptioning.pytorch")
    for name in ("captioning", "captioning.models"):
        package = ModuleType(name)
        package.__path__ = [str(folder.joinpath(*name.split(".")))]
        sys.modules[name] = package
    if importlib.util.find_spec("six") is None:  # they only use it to read pickles
        moves = ModuleType("six.moves")
        vars(moves)["cPickle"] = pickle
        sys.modules["six.moves"] = moves
        sys.modules["six"] = ModuleType("six")
    return importlib.import_module("captioning.models.AttModel")


def peer_options(vocabulary: Vocabulary) -> SimpleNamespace:
    return SimpleNamespace(
        vocab_size=len(vocabulary) - 1,  # they add one
        input_encoding_size=WIDTH,
        rnn_size=WIDTH,
        num_layers=1,
        drop_prob_lm=0.0,
        max_length=MOST_WORDS,
        fc_feat_size=WIDTH,
        att_feat_size=IDENTITY.width,
        att_hid_size=WIDTH,
        bos_idx=START,
        eos_idx=END,
        pad_idx=PAD,
        vocab={},
    )


@torch.no_grad()
def copy_updown(ours: UpDown, theirs: Any) -> None:
    """The same function in both: words are read by ReLU there, so ours are made positive."""
    ours.word.weight.abs_()
    attend, speak, look = theirs.core.att_lstm, theirs.core.lang_lstm, theirs.core.attention
    order = [0, 1, 3, 2]  # their gates are input, forget, candidate, output

    def gates(weight: torch.Tensor) -> torch.Tensor:
        return torch.cat([weight.chunk(4)[gate] for gate in order])

    from_second, from_first = ours.gates_from_states.weight.chunk(2, dim=1)
    of_inputs = [from_second, ours.gates_from_mean.weight, ours.gates_from_word.weight]
    pairs = {
        theirs.embed[0].weight: ours.word.weight,
        theirs.fc_embed[0].weight: torch.eye(WIDTH),
        theirs.fc_embed[0].bias: torch.zeros(WIDTH),
        theirs.att_embed[0].weight: ours.region.weight,
        theirs.att_embed[0].bias: ours.region.bias,
        theirs.ctx2att.weight: ours.key.weight,
        theirs.ctx2att.bias: ours.key.bias,
        theirs.logit.weight: ours.predict.weight,
        theirs.logit.bias: ours.predict.bias + ours.predict.impossible.clamp(min=-1e4),  # -inf times their mask is NaN
        attend.weight_ih: gates(torch.cat(of_inputs, dim=1)),
        attend.weight_hh: gates(from_first),
        attend.bias_ih: gates(ours.gates_from_word.bias),
        attend.bias_hh: torch.zeros(4 * WIDTH),
        speak.weight_ih: gates(ours.language_gates.weight[:, : 2 * WIDTH]),
        speak.weight_hh: gates(ours.language_gates.weight[:, 2 * WIDTH :]),
        speak.bias_ih: gates(ours.language_gates.bias),
        speak.bias_hh: torch.zeros(4 * WIDTH),
        look.h2att.weight: ours.query.weight,
        look.h2att.bias: torch.zeros(WIDTH),
        look.alpha_net.weight: ours.score.weight,
        look.alpha_net.bias: torch.zeros(1),
    }
    for own, given in pairs.items():
        own.copy_(given)


def made_up_captions() -> tuple[torch.Tensor, torch.Tensor]:
    """Tokens of 50 captions of 8 to 18 words, and the image of each, of 10."""
    generator = torch.Generator().manual_seed(0)
    lengths = (8 + torch.empty(50).exponential_(0.4, generator=generator)).clamp(max=18).long()
    tokens = torch.randint(END + 2, WORDS, (50, int(lengths.max()) + 1), generator=generator)
    place = torch.arange(tokens.shape[1])
    tokens = tokens.where(place < lengths[:, None], END).where(place <= lengths[:, None], PAD)
    return tokens, torch.arange(10).repeat_interleave(5)


def training(ours: Any, theirs: Any, features: torch.Tensor, equal: bool) -> Runs:
    """A step of both on the same captions."""
    tokens, image_of_row = made_up_captions()
    real = tokens != PAD
    before = torch.cat([torch.full((50, 1), START), tokens[:, :-1]], dim=1)
    normal, mean = inputs_of_peer(ours, features)

    def own() -> Any:
        ours.zero_grad(set_to_none=True)
        loss: Any = -ours.log_prob(ours.encode(features), tokens, image_of_row).sum() / real.sum()
        loss.backward()
        return loss.detach()

    def peer() -> Any:
        theirs.zero_grad(set_to_none=True)
        log_probs = theirs(mean, normal, before.view(10, 5, -1))
        # Their criterion: the words' log probabilities times a mask.
        loss = -(log_probs.gather(2, tokens[..., None]).squeeze(2) * real).sum() / real.sum()
        loss.backward()
        return loss.detach()

    one, other = own(), peer()
    if equal:
        assert torch.allclose(one, other, rtol=1e-4), f"losses differ: {one} and {other}"
        for name, mine, its in (
            ("words", ours.predict.weight, theirs.logit.weight),
            ("regions", ours.key.weight, theirs.ctx2att.weight),
            ("attention", ours.query.weight, theirs.core.attention.h2att.weight),
        ):
            apart = (mine.grad - its.grad).abs().max() / its.grad.abs().max()
            assert apart < 1e-3, f"the gradients of the {name} differ by {apart:.1e} of the largest"
    return own, peer


def searching(ours: Any, theirs: Any, features: torch.Tensor, equal: bool) -> Runs:
    """Beam search of both for the same images."""
    normal, mean = inputs_of_peer(ours, features)

    def own() -> Any:
        return n_best(ours, features, SEARCH)

    @torch.no_grad()
    def peer() -> Any:
        sequences, _ = theirs(mean, normal, mode="sample", opt={"beam_size": SEARCH.beam, "sample_n": 1})
        return sequences, [beams[0]["p"] for beams in theirs.done_beams]

    if equal:
        mine, (sequences, scores) = own(), peer()
        captions = ours.detokenize(sequences)
        same = [said[0].caption == caption for said, caption in zip(mine, captions, strict=True)]
        assert sum(same) >= 0.9 * len(same), f"only {sum(same)} of {len(same)} captions are the same"
        for said, score in (pair for pair, kept in zip(zip(mine, scores, strict=True), same, strict=True) if kept):
            assert abs(said[0].log_prob - score) < 1e-3 * abs(score), f"{said[0].log_prob} and {score}"
        lengths = sorted(len(said[0].caption.split()) for said in mine)
        print(f"{sum(same)} of {len(same)} captions are the same, of {lengths[0]} to {lengths[-1]} words")
    return own, peer


@torch.no_grad()
def inputs_of_peer(ours: Any, features: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Normalised features, and the mean of the regions, which they ask for as one vector."""
    normal = ours.normalise(features)
    return normal, ours.encode(features).regions.mean(dim=1)


@torch.no_grad()
def teach_to_end(captioner: Any, features: torch.Tensor) -> None:
    """Make words distinct, and fit the end token's row so that captions end after ten words or so."""
    captioner.predict.weight *= 12
    said = n_best(captioner, features, DecodingSettings(beam=1, min_words=MOST_WORDS, max_words=MOST_WORDS))
    tokens = captioner.tokenize([one.caption for (one,) in said])[:, :MOST_WORDS]
    states = captioner.hidden(captioner.encode(features), tokens, torch.arange(len(features)))
    likeliest = captioner.output(states).amax(dim=1).view(len(features), -1)
    wanted = likeliest + 1.5 * (torch.arange(MOST_WORDS) - 7 - 7 * torch.rand(len(features), 1))
    inputs = torch.cat([states, torch.ones(len(states), 1)], dim=1).double()
    ridge = inputs.T @ inputs + 0.1 * torch.eye(inputs.shape[1])
    fitted = torch.linalg.solve(ridge, inputs.T @ wanted.flatten().double()).float()
    captioner.predict.weight[END], captioner.predict.bias[END] = fitted[:-1], fitted[-1]


def make_captioners() -> tuple[UpDown, AdaptiveAttention]:
    vocabulary = Vocabulary([f"word{number}" for number in range(WORDS)], max_words=MOST_WORDS)
    sizes = AdaptiveAttentionSettings(dropout=0.0, attention=WIDTH, embedding=WIDTH)
    return (
        UpDown(UpDownSettings(dropout=0.0, attention=WIDTH), vocabulary, IDENTITY),
        AdaptiveAttention(sizes, vocabulary, IDENTITY),
    )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--peer", type=Path, help="a checkout of ImageCaptioning.pytorch")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=1)
    chosen = parser.parse_args()
    if chosen.peer is None:
        print("skipped: UpDown and AdaptiveAttention beside ImageCaptioning.pytorch (give its folder by --peer)")
        return
    torch.set_num_threads(chosen.threads)
    torch.manual_seed(0)
    peer = open_peer(chosen.peer)
    updown, adaptive = make_captioners()
    options = peer_options(updown.vocabulary)
    features = torch.randn(50, IDENTITY.regions, IDENTITY.width)
    for name, ours, theirs in (
        ("UpDown", updown, peer.UpDownModel(options)),
        ("AdaptiveAttention", adaptive, peer.AdaAttModel(options)),
    ):
        equal = name == "UpDown"
        if isinstance(ours, UpDown):
            copy_updown(ours, theirs)
        runs = training(ours, theirs, features[:10], equal)
        best = best_seconds({"ours": runs[0], "peer": runs[1]}, chosen.rounds)
        show(f"training step, {name}, 50 captions", best["ours"], best["peer"], bare_cost(runs[0]))
        ours.eval()
        theirs.eval()
        teach_to_end(ours, features)
        if isinstance(ours, UpDown):
            copy_updown(ours, theirs)
        runs = searching(ours, theirs, features, equal)
        best = best_seconds({"ours": runs[0], "peer": runs[1]}, max(1, chosen.rounds // 2))
        show(f"beam search, {name}, 50 images", best["ours"], best["peer"], bare_cost(runs[0]))


if __name__ == "__main__":
    main()
