"""Beam search beside Hugging Face's `generate`: the same weights, the same features, the same captions, in one run.

    .venv/bin/python benchmarks/decoding.py [--rounds 3] [--images 1 16 64] [--beam 5] [--threads 1]

The captioner is the decoder of the plain Transformer; its weights are copied into a Marian decoder of transformers,
which has the same equations (post-norm, ReLU, scaled embeddings, position signals). Both are given the regions of each
image as an image encoder would give them. Weights are random, but for the end token's: its row is fitted so that
captions end after ten words or so, some sooner, some later. Rounds of both alternate; medians are
compared, and in every round the captions and their log probabilities must be the same, the best one and the whole list
of n-best.

Then a step's cost by how much was said before it: with the caches, and with the prefix run again.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch

from tellapart.captioners.transformer import Transformer, TransformerMemory, TransformerSettings
from tellapart.decoding.search import n_best
from tellapart.decoding.settings import DecodingSettings
from tellapart.encoders.base import EncoderIdentity
from tellapart.text import END, PAD, START, Vocabulary

SIZE = TransformerSettings(width=512, layers=3)
IDENTITY = EncoderIdentity("made-up", "0", "none", regions=49, width=SIZE.width)
MOST_WORDS = 40
POSITIONS = (5, 10, 20, 40)


class Decoder(Transformer):
    """The Transformer without its image encoder: features are what that would give."""

    def encode(self, features: torch.Tensor) -> TransformerMemory:
        return TransformerMemory([layer.image_keys_and_values([features]) for layer in self._layers()], len(features))


def make_captioner(words: int) -> Decoder:
    torch.manual_seed(0)
    vocabulary = Vocabulary([f"word{number}" for number in range(words)], max_words=MOST_WORDS)
    captioner = Decoder(SIZE, vocabulary, IDENTITY).eval()
    with torch.no_grad():
        captioner.predict.weight *= 4  # random weights alone are nearly undecided between all words
    return captioner


@torch.no_grad()
def teach_to_end(captioner: Decoder, features: torch.Tensor) -> None:
    """Fit the end token's row (ridge regression): its logit passes that of the likeliest word after ten or so."""
    said = n_best(captioner, features, DecodingSettings(beam=1, min_words=20, max_words=20))
    tokens = captioner.tokenize([one.caption for (one,) in said])[:, :20]
    memory, images = captioner.encode(features), torch.arange(len(features))
    states = captioner.hidden(memory, tokens, images)
    likeliest = captioner.output(states).amax(dim=1).view(len(features), -1)
    ends_after = 7 + 7 * torch.rand(len(features), 1)
    wanted = likeliest + 1.5 * (torch.arange(20) - ends_after)
    inputs = torch.cat([states, torch.ones(len(states), 1)], dim=1).double()
    ridge = inputs.T @ inputs + torch.eye(inputs.shape[1])
    fitted = torch.linalg.solve(ridge, inputs.T @ wanted.flatten().double()).float()
    captioner.predict.weight[END], captioner.predict.bias[END] = fitted[:-1], fitted[-1]


def as_marian(captioner: Decoder) -> Any:
    """A Hugging Face model whose decoder has this captioner's weights."""
    from transformers import MarianConfig, MarianMTModel

    size = captioner.settings
    config = MarianConfig(
        vocab_size=len(captioner.vocabulary),
        d_model=size.width,
        encoder_layers=1,  # not run: it is given what an encoder would give
        encoder_ffn_dim=8,
        encoder_attention_heads=size.heads,
        decoder_layers=size.layers,
        decoder_ffn_dim=size.feedforward,
        decoder_attention_heads=size.heads,
        activation_function="relu",
        scale_embedding=True,
        max_position_embeddings=MOST_WORDS + 1,
        pad_token_id=PAD,
        eos_token_id=END,
        bos_token_id=START,
        decoder_start_token_id=START,
        forced_eos_token_id=None,
        tie_word_embeddings=False,
    )
    model: Any = MarianMTModel(config)
    weights = {
        "model.decoder.embed_tokens.weight": captioner.word.weight,
        "model.decoder.embed_positions.weight": captioner.positions,
        "lm_head.weight": captioner.predict.weight,
        "final_logits_bias": (captioner.predict.bias + captioner.predict.impossible)[None],
    }
    for number, layer in enumerate(captioner._layers()):
        parts: dict[str, torch.nn.Module] = {
            "self_attn_layer_norm": layer.around_attention.norm,
            "encoder_attn_layer_norm": layer.around_look.norm,
            "final_layer_norm": layer.around_think.norm,
            "fc1": layer.think[0],
            "fc2": layer.think[3],
        }
        for name, attention in (("self_attn", layer.attention), ("encoder_attn", layer.look)):
            parts |= {f"{name}.q_proj": attention.query, f"{name}.k_proj": attention.key}
            parts |= {f"{name}.v_proj": attention.value, f"{name}.out_proj": attention.mix}
        for name, part in parts.items():
            for kind, tensor in part.state_dict().items():
                weights[f"model.decoder.layers.{number}.{name}.{kind}"] = tensor
    own = model.state_dict()
    with torch.no_grad():
        for name, tensor in weights.items():
            own[name].copy_(tensor)
    left = [name for name in own if name.startswith("model.decoder.") and name not in weights]
    assert left == [], f"the decoder keeps weights of its own: {left}"
    return model.eval()


Captions = list[list[tuple[str, float]]]


def ours(captioner: Decoder, features: torch.Tensor, settings: DecodingSettings) -> Captions:
    found = n_best(captioner, features, settings)
    return [[(one.caption, one.log_prob) for one in said] for said in found]


@torch.no_grad()
def theirs(model: Any, captioner: Decoder, features: torch.Tensor, settings: DecodingSettings) -> Captions:
    from transformers.modeling_outputs import BaseModelOutput

    regions: Any = features  # transformers asks for a FloatTensor, a type that nothing has
    found = model.generate(
        encoder_outputs=BaseModelOutput(last_hidden_state=regions),
        attention_mask=torch.ones(features.shape[:2], dtype=torch.long),
        num_beams=settings.beam,
        num_return_sequences=settings.samples,
        do_sample=False,
        max_new_tokens=settings.max_words + 1,
        length_penalty=0.0,  # the sum of log probabilities
        early_stopping=False,  # stops when no running caption can enter the list, as ours does
        return_dict_in_generate=True,
        output_scores=True,
    )
    captions = captioner.detokenize(found.sequences)
    listed = list(zip(captions, found.sequences_scores.tolist(), strict=True))
    return [listed[first : first + settings.samples] for first in range(0, len(listed), settings.samples)]


def timed(call: Callable[[], Captions]) -> tuple[Captions, float, float]:
    """What it gives, wall seconds, CPU seconds."""
    wall, cpu = time.perf_counter(), time.process_time()
    found = call()
    return found, time.perf_counter() - wall, time.process_time() - cpu


def check_same(one: Captions, other: Captions) -> None:
    assert [[caption for caption, _ in said] for said in one] == [[caption for caption, _ in said] for said in other]
    scores, others = (torch.tensor([score for said in found for _, score in said]) for found in (one, other))
    assert torch.allclose(scores, others, atol=1e-3), "the same captions have other scores"


def compare(captioner: Decoder, features: torch.Tensor, settings: DecodingSettings, rounds: int) -> float:
    """Prints captions a second of both, and gives how many times faster ours is (wall)."""
    model = as_marian(captioner)
    seconds: dict[str, list[float]] = {"ours": [], "ours cpu": [], "theirs": [], "theirs cpu": []}
    for round_number in range(rounds + 1):
        own, wall, cpu = timed(lambda: ours(captioner, features, settings))
        other, other_wall, other_cpu = timed(lambda: theirs(model, captioner, features, settings))
        check_same(own, other)
        if round_number > 0:  # the first warms up
            for key, value in zip(seconds, (wall, cpu, other_wall, other_cpu), strict=True):
                seconds[key].append(value)
    median = {key: statistics.median(values) for key, values in seconds.items()}
    images = len(features)
    lengths = sorted(len(said[0][0].split()) for said in own)
    print(
        f"{images:3d} images, beam {settings.beam}, {settings.samples}-best, captions of {lengths[0]} to {lengths[-1]} "
        f"words (median {lengths[len(lengths) // 2]}), {rounds} rounds, the same captions in all:"
    )
    for name, key in (("tellapart", "ours"), ("generate ", "theirs")):
        print(
            f"  {name} {images / median[key]:7.2f} captions/s wall, {images / median[f'{key} cpu']:7.2f} captions/s CPU"
        )
    ratio = median["theirs"] / median["ours"]
    print(f"  ratio     {ratio:7.2f} wall, {median['theirs cpu'] / median['ours cpu']:.2f} CPU")
    return ratio


@torch.no_grad()
def cost_by_position(captioner: Decoder, features: torch.Tensor, beam: int, rounds: int) -> None:
    """Prints a step's CPU time after so many words: with caches (reordering included), and by running the prefix."""
    image_of_row = torch.arange(len(features)).repeat_interleave(beam)
    rows = len(image_of_row)
    tokens = torch.randint(END + 2, len(captioner.vocabulary), (rows, MOST_WORDS + 1))
    memory = captioner.encode(features)
    shuffled = torch.randperm(beam).repeat(len(features)) + image_of_row * beam
    cached: dict[int, list[float]] = {position: [] for position in POSITIONS}
    again: dict[int, list[float]] = {position: [] for position in POSITIONS}
    for _ in range(rounds):
        state, token = captioner.start(memory, image_of_row), torch.full((rows,), START)
        for position in range(MOST_WORDS + 1):
            began = time.process_time()
            _, state = captioner.step(state, token)
            state = captioner.select(state, shuffled)
            if position in cached:
                cached[position].append(time.process_time() - began)
            token = tokens[:, position]
        for position in POSITIONS:
            began = time.process_time()
            hidden = captioner.hidden(memory, tokens[:, : position + 1], image_of_row)
            captioner.output(hidden.view(rows, position + 1, -1)[:, -1]).log_softmax(dim=1)
            again[position].append(time.process_time() - began)
    print(f"\nA step of {rows} rows after so many words, CPU milliseconds (microseconds a token):")
    for name, times in (("with caches ", cached), ("prefix again", again)):
        listed = (statistics.median(times[position]) for position in POSITIONS)
        shown = [f"{1000 * s:8.1f} ({1e6 * s / rows:6.0f})" for s in listed]
        print(f"  {name}  " + "  ".join(f"{p:2d}: {text}" for p, text in zip(POSITIONS, shown, strict=True)))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--images", type=int, nargs="+", default=[1, 16, 64])
    parser.add_argument("--beam", type=int, default=5)
    parser.add_argument("--words", type=int, default=9563, help="of the vocabulary; CL's on COCO by default")
    parser.add_argument("--threads", type=int, default=1)
    chosen = parser.parse_args()
    torch.set_num_threads(chosen.threads)
    captioner = make_captioner(chosen.words)
    features = torch.randn(max(chosen.images), IDENTITY.regions, IDENTITY.width)
    teach_to_end(captioner, features)
    for images in chosen.images:
        for samples in (1, chosen.beam):
            settings = DecodingSettings(beam=chosen.beam, samples=samples, max_words=20, block_unknown=False)
            compare(captioner, features[:images], settings, chosen.rounds)
    cost_by_position(captioner, features[:16], chosen.beam, chosen.rounds)


if __name__ == "__main__":
    main()
