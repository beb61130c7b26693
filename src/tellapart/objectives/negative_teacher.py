"""UNKT: a negative teacher shows what not to say (Fei and Huang, IJCAI 2023)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal

import torch
from pydantic import BaseModel, Field, model_validator
from torch.nn import functional

from tellapart.captioners.base import Captioner
from tellapart.data.batches import Batch, Kind
from tellapart.errors import RecipeError
from tellapart.objectives.base import Needs, Objective, Progress, Roles, Total, captions_of
from tellapart.objectives.own_captions import sample_tokens, without_dropout
from tellapart.settings import Section
from tellapart.text import PAD, SPECIALS, Vocabulary

ROLE = "negative_teacher"

# --- the losses of each token -----------------------------------------------------------------------------------------


def log_one_minus(logits: torch.Tensor) -> torch.Tensor:
    """ln(1 − p) of every word, with p = softmax(logits): `[tokens, vocabulary]`, in float32.

    Only the likeliest word can have p > ½, where 1 − p loses precision. For it, ln(1 − p) is the logsumexp of the
    others.

    >>> log_one_minus(torch.tensor([[0.0, 40.0]]))[0, 1].item()   # 1 − p of this word is e⁻⁴⁰
    -40.0
    """
    log_p = logits.float().log_softmax(dim=1)
    top = log_p.argmax(dim=1, keepdim=True)
    of_top = log_p.scatter(1, top, -torch.inf).logsumexp(dim=1, keepdim=True)
    return torch.log1p(-log_p.exp().scatter(1, top, 0.0)).scatter(1, top, of_top)


def soft_unlikelihood(student: torch.Tensor, teacher: torch.Tensor) -> torch.Tensor:
    """Equation 5 of each token: −Σ_k p_n(k) ln(1 − p_s(k)), `[tokens]`.

    Args:
        student: logits, `[tokens, vocabulary]`.
        teacher: logits of the negative teacher, without gradient.

    Example:
        >>> soft_unlikelihood(torch.zeros(1, 2), torch.tensor([[5.0, 1.0]])).item()   # ln 2, whatever the teacher says
        0.6931471824645996
    """
    return -(teacher.float().softmax(dim=1) * log_one_minus(student)).sum(dim=1)


def hard_unlikelihood(student: torch.Tensor, words: torch.Tensor) -> torch.Tensor:
    """Unlikelihood of one word at each token: −ln(1 − p_s(y⁻)), `[tokens]`."""
    return -log_one_minus(student).gather(1, words[:, None]).squeeze(1)


def unlikelihood(student: torch.Tensor, words: torch.Tensor, candidates: torch.Tensor) -> torch.Tensor:
    """Equation 2 of each token: −Σ_{y⁻ ∈ V_n} ln(1 − p_s(y⁻)), `[tokens]`; the true word is no candidate.

    Args:
        student: logits, `[tokens, vocabulary]`.
        words: the true words, `[tokens]`.
        candidates: V_n, as rows of the vocabulary.
    """
    of_candidates = -log_one_minus(student)[:, candidates]
    return of_candidates.masked_fill(candidates == words[:, None], 0.0).sum(dim=1)


def distillation(student: torch.Tensor, teacher: torch.Tensor) -> torch.Tensor:
    """Equation 4 of each token: −Σ_k p_t(k) ln p_s(k), `[tokens]`."""
    weights = teacher.float().softmax(dim=1)
    # A word that cannot occur has ln p = −∞ and weight 0.
    return -torch.where(weights > 0, weights * student.float().log_softmax(dim=1), 0.0).sum(dim=1)


def exp_minus_kl(teacher: torch.Tensor, student: torch.Tensor) -> torch.Tensor:
    """One element of equation 6: exp(−KL(P ‖ Q)), over the last dimension; 1 if the two are equal.

    Args:
        teacher: ln P, without gradient; −∞ where P is 0.
        student: ln Q; P is 0 where Q is.

    Example:
        >>> same = torch.tensor([[0.25, 0.75]]).log()
        >>> exp_minus_kl(same, same)
        tensor([1.])
    """
    terms = torch.where(teacher > -torch.inf, teacher.exp() * (teacher - student), 0.0)
    return torch.exp(-terms.sum(dim=-1))


def hidden_similarity(teacher: list[torch.Tensor], student: list[torch.Tensor]) -> torch.Tensor:
    """Σ_l of equation 7 for each token, `[tokens]`, from the states of each layer `[tokens, width]`."""
    pairs = zip(teacher, student, strict=True)
    layers = [exp_minus_kl(n.float().log_softmax(dim=1), s.float().log_softmax(dim=1)) for n, s in pairs]
    return torch.stack(layers).sum(dim=0)


def attention_similarity(
    teacher: list[tuple[torch.Tensor, ...]], student: list[tuple[torch.Tensor, ...]]
) -> torch.Tensor:
    """Σ_l of equation 8 for each token, `[tokens]`: the mean over all rows of attention that the token has in a layer.

    Args:
        teacher: for each layer, ln of the weights `[tokens, heads, items]`: over words, over regions, or both.
        student: the same.
    """
    layers = []
    for of_teacher, of_student in zip(teacher, student, strict=True):
        rows = [exp_minus_kl(n.float(), s.float()) for n, s in zip(of_teacher, of_student, strict=True)]
        layers.append(torch.cat(rows, dim=1).mean(dim=1))
    return torch.stack(layers).sum(dim=0)


def progressive_weight(progress: Progress, highest: float, warmup: float) -> float:
    """λ of a step: it rises linearly to its highest value, then follows equation 10, which ends at half of it.

    Args:
        progress: the step.
        highest: λ_max.
        warmup: share of the steps over which λ rises; T, of equation 10, is the rest.

    Example:
        >>> [round(progressive_weight(Progress(step, 100), 0.8, 0.2), 3) for step in (0, 10, 20, 60, 100)]
        [0.0, 0.4, 0.8, 0.683, 0.4]
    """
    rise = warmup * progress.steps
    if progress.step < rise:
        return highest * progress.step / rise
    fraction = (progress.step - rise) / max(1.0, progress.steps - rise)
    return highest * 0.5 * (1 + math.cos(fraction * math.pi / 2))


# --- the objective ----------------------------------------------------------------------------------------------------

# Where the prediction term has words of its own, and reads them.
OWN_WORDS = ("hard", "random")


class NegativeTeacherSettings(Section):
    """Settings of `NegativeTeacher`."""

    prediction: Literal["soft", "hard", "random", "unlikelihood", "distillation", "none"] = Field(
        "soft",
        description="L_pred: avoid the teacher's probabilities, its greedy caption, a random caption or the most "
        "frequent words (eq. 2); or go towards the teacher (eq. 4)",
    )
    temperature: float = Field(1.0, gt=1e-3, description="t of the softmax of both models in L_pred")
    frequent: int = Field(20, ge=1, description="unlikelihood: number of most frequent words")
    hidden: bool = Field(True, description="use L_hid")
    self_attention: bool = Field(True, description="L_att: use attention to the words so far")
    cross_attention: bool = Field(True, description="L_att: use attention to the image")
    prefix: Literal["truth", "teacher"] = Field(
        "truth", description="what both models read when they are compared: true captions, or the teacher's greedy ones"
    )
    schedule: Literal["progressive", "fixed"] = Field("progressive", description="of λ")
    lambda_max: float = Field(1.0, gt=0, le=1, description="highest λ; with 1 the likelihood has no weight there")
    warmup: float = Field(0.2, ge=0, le=1, description="progressive: share of the steps over which λ rises from 0")

    @property
    def attention(self) -> bool:
        return self.self_attention or self.cross_attention

    @property
    def compares(self) -> bool:
        """Whether both models run over the same words."""
        return self.prediction in ("soft", "distillation") or self.hidden or self.attention

    @model_validator(mode="after")
    def _has_a_term(self) -> NegativeTeacherSettings:
        if self.prediction == "none" and not (self.hidden or self.attention):
            raise ValueError(
                "all terms are off; set prediction, hidden or an attention, or use the objective likelihood"
            )
        if self.prefix == "teacher" and not self.compares:
            raise ValueError("prefix: no term compares with the teacher; set it to truth")
        return self


@dataclass(frozen=True)
class Pass:
    """A teacher-forced pass over captions, of real tokens only.

    Attributes:
        logits: `[tokens, vocabulary]`.
        layers: hidden states of each layer, `[tokens, width]`.
        attention: for each layer, ln of the weights that are compared, `[tokens, heads, items]`.
    """

    logits: torch.Tensor
    layers: list[torch.Tensor]
    attention: list[tuple[torch.Tensor, ...]]


class NegativeTeacher(Objective):
    """UNKT: likelihood, and distance from a frozen captioner that was trained on generic captions.

    Use it to make several captions of an image more diverse. With the negative teacher n and the student s, which both
    read the true caption::

        L_mle  = −Σ_i ln p_s(y_i | Y_<i, X)                                                  (1)
        L_pred = −Σ_i Σ_k p_n(y_i = k | Y_<i, X) ln(1 − p_s(y_i = k | Y_<i, X))              (5)
        L_hid^l = mean exp(−KL(softmax h_n^l ‖ softmax h_s^l)),   over tokens                (6, 7)
        L_att^l = mean exp(−KL(a_n^l ‖ a_s^l)),   over tokens, heads, and both attentions    (6, 8)
        L = (1 − λ) L_mle + λ (L_pred + Σ_l L_hid^l + Σ_l L_att^l)                           (9)
        λ rises linearly to λ_max, then λ = λ_max ½ (1 + cos(step/T · π/2))                  (10)

    All terms are means over the real tokens of the batch, the end token among them; l runs over decoder layers. λ ends
    at ½ λ_max. With `schedule: fixed` it is always λ_max.

    Ablations: `prediction: hard` takes the teacher's greedy caption Y⁻ and `random` a caption of another image; both
    are read in place of the true caption, −Σ_i ln(1 − p_s(y⁻_i | Y⁻_<i)). Where random captions come from is
    `negatives.by`. Controls: `unlikelihood` of the most frequent words (2) and `distillation` towards the teacher
    (4).

    Logged besides the weighted `loss_…`: the terms `nll`, `prediction`, `hidden`, `attention` without weights, and
    `lambda`. The loss changes with λ: to choose a checkpoint monitor `nll` or CIDEr.

    L_att needs a Transformer. The two models must have the same words, and the same shape for L_hid and L_att.
    Related: `Contrastive` makes captions fit their image only. Combine both by `Composed`.

    Args:
        settings: see `NegativeTeacherSettings`.
        roles: the target, a captioner; `negative_teacher`, unless no term needs it.

    Example:
        >>> teacher = load_captioner("runs/scenes-unkt-negative-teacher-1a2b3c4d")                  # doctest: +SKIP
        >>> roles = Roles(target, negative_teacher=teacher)                                         # doctest: +SKIP
        >>> objective = NegativeTeacher(NegativeTeacherSettings(lambda_max=0.5), roles)             # doctest: +SKIP
    """

    name = "negative-teacher"
    Settings = NegativeTeacherSettings
    settings: NegativeTeacherSettings

    def __init__(self, settings: NegativeTeacherSettings, roles: Roles) -> None:
        super().__init__(settings, roles)
        if ROLE in self.frozen:
            self._check_teacher()
        if settings.prediction == "unlikelihood":
            self.candidates = _frequent_words(self.target, settings.frequent)

    @classmethod
    def needs(cls, settings: BaseModel) -> Needs:
        assert isinstance(settings, NegativeTeacherSettings)
        roles = {ROLE: "captioner"} if settings.compares or settings.prediction == "hard" else {}
        return Needs(roles, negatives=int(settings.prediction == "random"))

    def losses(self, phase: str = "train") -> dict[str, float]:
        return {f"loss_{name}": 1.0 for name in self._terms()}

    def weight(self, progress: Progress) -> float:
        """λ of a step."""
        if self.settings.schedule == "fixed":
            return self.settings.lambda_max
        return progressive_weight(progress, self.settings.lambda_max, self.settings.warmup)

    def forward(self, batch: Batch, progress: Progress, phase: str = "train") -> dict[str, Total]:
        rows = batch.pairs.of(Kind.POSITIVE)
        if not len(rows):  # an empty part of a batch
            nothing = Total(torch.zeros((), device=self.target.device), 0)
            return dict.fromkeys([*self.losses(), *self._terms(), "lambda"], nothing)
        weight, terms = self.weight(progress), self._totals(batch, rows)
        weighted = {
            f"loss_{name}": Total((1 - weight if name == "nll" else weight) * total.sum, total.count)
            for name, total in terms.items()
        }
        logged = {name: Total(total.sum.detach(), total.count) for name, total in terms.items()}
        return {**weighted, **logged, "lambda": Total(torch.tensor(weight * len(rows)), len(rows))}

    def _terms(self) -> list[str]:
        """The names of the terms that are in use."""
        chosen = {
            "nll": True,
            "prediction": self.settings.prediction != "none",
            "hidden": self.settings.hidden,
            "attention": self.settings.attention,
        }
        return [name for name, used in chosen.items() if used]

    def _totals(self, batch: Batch, rows: torch.Tensor) -> dict[str, Total]:
        """Each term without its weight."""
        settings, target = self.settings, self.target
        memory = self._encode(target, batch)
        tokens, images = target.tokenize(captions_of(batch, rows)), batch.pairs.image_row[rows]
        of_truth = self._run(target, memory, tokens, images, settings.prefix == "truth")
        words = tokens[tokens != PAD]
        found = {"nll": functional.cross_entropy(of_truth.logits.float(), words, reduction="none")}
        said = of_truth
        if settings.prefix == "teacher":
            tokens = self._greedy(batch)
            words, images = tokens[tokens != PAD], torch.arange(len(tokens), device=tokens.device)
            said = self._run(target, memory, tokens, images)
        teacher = self._run_teacher(batch, tokens, images) if settings.compares else said
        if settings.prediction in OWN_WORDS:
            found["prediction"] = self._against_own_words(batch, memory)
        elif settings.prediction != "none":
            found["prediction"] = self._prediction(said.logits, teacher.logits, words)
        if settings.hidden:
            found["hidden"] = hidden_similarity(teacher.layers, said.layers)
        if settings.attention:
            found["attention"] = attention_similarity(teacher.attention, said.attention)
        return {name: Total(values.sum(), len(values)) for name, values in found.items()}

    def _prediction(self, student: torch.Tensor, teacher: torch.Tensor, words: torch.Tensor) -> torch.Tensor:
        """L_pred of each token where both models read the same words."""
        student, teacher = student / self.settings.temperature, teacher / self.settings.temperature
        if self.settings.prediction == "unlikelihood":
            return unlikelihood(student, words, self.candidates.to(words.device))
        return (soft_unlikelihood if self.settings.prediction == "soft" else distillation)(student, teacher)

    def _against_own_words(self, batch: Batch, memory: Any) -> torch.Tensor:
        """L_pred of each token of the teacher's captions, or of random ones, read in place of the true captions."""
        if self.settings.prediction == "hard":
            tokens = self._greedy(batch)
            images = torch.arange(len(tokens), device=tokens.device)
        else:
            rows = batch.pairs.of(Kind.NEGATIVE)
            rows = rows.view(len(batch.pairs.of(Kind.POSITIVE)), -1)[:, 0]  # another objective may need more of them
            tokens, images = self.target.tokenize(captions_of(batch, rows)), batch.pairs.image_row[rows]
        logits = self.target.output(self.target.hidden(memory, tokens, images))
        return hard_unlikelihood(logits / self.settings.temperature, tokens[tokens != PAD])

    def _run(
        self, captioner: Captioner, memory: Any, tokens: torch.Tensor, images: torch.Tensor, compared: bool = True
    ) -> Pass:
        """A pass over captions; with hidden states and attention only if they are compared."""
        settings, real = self.settings, tokens != PAD
        if not compared or not (settings.hidden or settings.attention):
            return Pass(captioner.output(captioner.hidden(memory, tokens, images)), [], [])
        traces = captioner.traces(memory, tokens, images)
        maps = [
            *([traces.self_attention] if settings.self_attention else []),
            *([traces.cross_attention] if settings.cross_attention else []),
        ]
        layers = [layer[real] for layer in traces.layers]
        return Pass(captioner.output(layers[-1]), layers, list(zip(*maps, strict=True)))

    @torch.no_grad()
    def _run_teacher(self, batch: Batch, tokens: torch.Tensor, images: torch.Tensor) -> Pass:
        teacher: Captioner = self.frozen[ROLE]
        return self._run(teacher, self._encode(teacher, batch), tokens, images)

    def _encode(self, captioner: Captioner, batch: Batch) -> Any:
        """The memory of this share's own images."""
        return captioner.encode(batch.features[captioner.encoder.name][: len(batch.ids)])

    def _greedy(self, batch: Batch) -> torch.Tensor:
        """The teacher's greedy caption of each image, `[images, tokens]`; once for all terms of a step."""
        teacher: Captioner = self.frozen[ROLE]

        @torch.no_grad()
        def speak() -> torch.Tensor:
            memory, images = self._encode(teacher, batch), len(batch.ids)
            return sample_tokens(teacher, memory, images, 1, lambda log_probs, *_: log_probs.argmax(dim=1))[0][:, 0]

        return batch.once((self.name, "greedy", id(teacher)), speak)

    def _check_teacher(self) -> None:
        """Refuse a teacher that cannot be compared with the target word by word, or layer by layer."""
        teacher, target, settings = self.frozen[ROLE], self.target, self.settings
        where = f"roles.{ROLE}"
        if not isinstance(teacher, Captioner):
            raise RecipeError(f"{where}: an ensemble has no single distribution to avoid; give one run or recipe")
        words, own = teacher.vocabulary, target.vocabulary
        if list(words.tokens) != list(own.tokens) or words.max_words != own.max_words:
            raise RecipeError(
                f"{where}: its words are not those of the trained captioner, and they are compared word by word; train "
                "it on the same data set with the same data.normaliser, data.min_count and data.max_words"
            )
        shapes = [_shapes(model) for model in (teacher, target)]
        for name, key, used in (
            ("L_hid", "hidden", settings.hidden),
            ("L_att", "self_attention", settings.self_attention),
            ("L_att", "cross_attention", settings.cross_attention),
        ):
            of_teacher, of_target = (shape[key] for shape in shapes)
            if used and not (of_teacher and of_target):
                lacking = teacher if not of_teacher else target
                raise RecipeError(
                    f"objective.{key}: {name} needs the attention maps of a Transformer, and the {lacking.name} "
                    f"captioner has none; set objective.{key} to false, or use a 'transformer' or 'meshed-memory'"
                )
            if used and of_teacher != of_target:
                raise RecipeError(
                    f"{where}: {name} compares layer by layer, and the shapes differ (teacher {of_teacher}, trained "
                    f"captioner {of_target}); use the same architecture, or set objective.{key} to false"
                )


@torch.no_grad()
def _shapes(captioner: Captioner) -> dict[str, list[list[int]]]:
    """The shapes of what can be compared, for a caption of one word."""
    with without_dropout(captioner):
        features = torch.zeros(1, captioner.encoder.regions, captioner.encoder.width, device=captioner.device)
        tokens = captioner.tokenize(["a"])
        traces = captioner.traces(captioner.encode(features), tokens, torch.zeros_like(tokens[:, 0]))
    compared = {
        "hidden": traces.layers,
        "self_attention": traces.self_attention,
        "cross_attention": traces.cross_attention,
    }
    # Without rows and tokens: captions may be cut at different lengths.
    start = {"hidden": 2, "self_attention": 1, "cross_attention": 1}
    return {name: [list(layer.shape[start[name] :]) for layer in layers] for name, layers in compared.items()}


def _frequent_words(captioner: Captioner, count: int) -> torch.Tensor:
    """The most frequent words of the training captions, as rows of the vocabulary."""
    if not isinstance(captioner.vocabulary, Vocabulary):
        raise RecipeError(
            f"objective.prediction: unlikelihood needs words in the order of their counts, and the {captioner.name} "
            "captioner has tokens of its own; use another captioner or another prediction"
        )
    first = len(SPECIALS)
    return torch.arange(first, min(first + count, len(captioner.vocabulary)))
