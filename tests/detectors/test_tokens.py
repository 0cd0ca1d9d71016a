"""Masking by dropping tokens: which are dropped, what the others see, and that nothing removed is used.

The models are those of transformers, tiny and with random weights.
"""

from __future__ import annotations

import copy
from fractions import Fraction
from importlib.util import find_spec
from types import SimpleNamespace

import numpy as np
import pytest
from detector_images import noise, scene
from tiny_transformers import tiny_yolos

from objectseeker.core.recipes import Halves, Pairs
from objectseeker.core.seeker import UNTOUCHED, ViewDetector, view_rectangles
from objectseeker.detectors import load_detector
from objectseeker.detectors import transformers as token_dropping
from objectseeker.detectors.check import _CheckFailedError, check_views
from objectseeker.detectors.network.raw_boxes import RawBoxes
from objectseeker.detectors.transformers import NOTHING, TokenDetector, kept_tokens, make_token_dropper
from objectseeker.errors import ObjectSeekerError

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from objectseeker.detectors.transformers import transformers_detector

LABELS = {"id2label": {0: "person", 1: "car"}, "label2id": {"person": 0, "car": 1}}
LEFT, TOP = (0, 0, 32, 64), (0, 0, 64, 32)  # halves of an image of 64 x 64, along borders of tokens
CUT = (0, 0, 28, 64)  # a line through the middle of tokens


def scattered(model):
    """Weights under which every pixel matters."""
    generator = torch.Generator().manual_seed(0)
    for weight in model.parameters():
        drawn = torch.randn(weight.shape, generator=generator)
        weight.data = 0.25 * drawn if weight.dim() > 1 else weight.data + 0.1 * drawn
    return model.eval()


@pytest.fixture(scope="module")
def yolos():
    """Inputs of 64 x 64 pixels, tokens of 16, embeddings between layers; and its processor."""
    model, processor = tiny_yolos(LABELS["label2id"], layers=2, size=(64, 64))
    return scattered(model), processor


@pytest.fixture(scope="module")
def rf_detr():
    """Inputs of 64 x 64 pixels, tokens of 8, four windows, a layer without and one with windows; and a processor."""
    if not hasattr(transformers, "RfDetrConfig"):
        pytest.skip("this version of transformers has no RF-DETR")
    backbone = transformers.RfDetrDinov2Config(
        hidden_size=16,
        num_hidden_layers=3,
        num_attention_heads=2,
        image_size=32,
        patch_size=8,
        num_windows=2,
        out_features=["stage1", "stage3"],
    )
    config = transformers.RfDetrConfig(
        backbone_config=backbone,
        d_model=16,
        decoder_ffn_dim=16,
        decoder_layers=1,
        decoder_self_attention_heads=2,
        decoder_cross_attention_heads=2,
        num_queries=6,
        group_detr=1,
        c2f_num_blocks=1,
        **LABELS,
    )
    processor = transformers.RTDetrImageProcessor(size={"height": 64, "width": 64})
    return scattered(transformers.RfDetrForObjectDetection(config)), processor


@pytest.fixture(params=["yolos", "rf_detr"])
def pair(request):
    return request.getfixturevalue(request.param)


@pytest.fixture
def detector(pair):
    return transformers_detector(*pair, mask_mode="drop", score_floor=0.0)


def contract(detector, image, recipe):
    return check_views(detector, image, recipe, batch_size=1, fill=114, rng=np.random.default_rng(0))


def seen(detector, image, removed=CUT):
    return detector.detect_views(image, np.array(removed).reshape(1, -1, 4), 114)[0]


# --- which tokens -------------------------------------------------------------------------------------------------


def touches_kept_pixel(image, network, token, rectangles, column, row):
    """Pixel by pixel: does a token share area with a raw pixel that is in no rectangle?"""
    ends = [
        [Fraction((place + i) * side * raw, length) for i in (0, 1)]
        for place, side, raw, length in zip((column, row), token, image, network, strict=True)
    ]
    (left, right), (top, bottom) = ends
    return any(
        max(left, x) < min(right, x + 1)
        and max(top, y) < min(bottom, y + 1)
        and not any(x1 <= x < x2 and y1 <= y < y2 for x1, y1, x2, y2 in rectangles)
        for x in range(image[0])
        for y in range(image[1])
    )


@pytest.mark.parametrize(
    ("image", "network", "token"),
    [((13, 9), (32, 32), (8, 8)), ((16, 12), (16, 12), (4, 4)), ((20, 11), (15, 10), (4, 3)), ((1, 1), (8, 8), (8, 8))],
)
def test_tokens_are_kept_that_touch_a_pixel_outside_the_mask(image, network, token):
    for recipe in (Halves(3), Pairs(2)):
        removed = view_rectangles(recipe.masks(*image))
        kept = kept_tokens(image, network, token, removed)
        columns, rows = network[0] // token[0], network[1] // token[1]
        assert kept.shape == (len(removed), rows * columns)
        assert kept[0].all()
        for view, rectangles in zip(kept.reshape(-1, rows, columns), removed.tolist(), strict=True):
            for row, column in np.ndindex(rows, columns):
                expected = touches_kept_pixel(image, network, token, rectangles, column, row)
                assert view[row, column] == expected, (rectangles, row, column)


# --- the contract -------------------------------------------------------------------------------------------------


def test_pixels_that_a_mask_removes_change_no_bit(detector):
    assert isinstance(detector, ViewDetector)
    assert "bit-identical" in contract(detector, scene(71, 49, 1), Halves(1))
    image, both = scene(50, 64, 2), [(0, 0, 21, 64), (0, 43, 50, 64)]
    rewritten = image.copy()
    for x1, y1, x2, y2 in both:
        rewritten[y1:y2, x1:x2] = noise(x2 - x1, y2 - y1, 3)
    assert seen(detector, image, both) == seen(detector, rewritten, both)


def test_dropped_tokens_are_not_read_even_where_nothing_is_painted_over(detector, monkeypatch):
    """Without paint, and with lines along the borders of tokens, nothing but dropping hides the removed half."""
    monkeypatch.setattr(token_dropping, "fill_rectangles", lambda image, removed, value: image)
    image = scene(64, 64, 1)
    for removed in (LEFT, TOP):
        x1, y1, x2, y2 = removed
        changed = image.copy()
        changed[y1:y2, x1:x2] = noise(x2 - x1, y2 - y1, 3)
        assert seen(detector, image, removed) == seen(detector, changed, removed)


def test_a_token_that_is_kept_by_mistake_and_not_painted_over_is_caught(detector, monkeypatch):
    def one_more(*sizes):
        kept = kept_tokens(*sizes)
        for view in kept:
            view[np.argmin(view)] = True  # the first that is missing
        return kept

    monkeypatch.setattr(token_dropping, "kept_tokens", one_more)
    image = scene(64, 64, 1)
    contract(detector, image, Halves(1))  # filled, it shows nothing
    monkeypatch.setattr(token_dropping, "fill_rectangles", lambda image, removed, value: image)
    with pytest.raises(_CheckFailedError, match="after removed pixels changed"):
        contract(detector, image, Halves(1))


def test_a_leak_through_a_token_that_is_cut_is_caught(detector, monkeypatch):
    monkeypatch.setattr(token_dropping, "fill_rectangles", lambda image, removed, value: image)
    with pytest.raises(_CheckFailedError, match="after removed pixels changed"):
        contract(detector, scene(71, 49, 1), Halves(1))


def test_what_is_left_of_a_cut_token_counts(detector, pair, monkeypatch):
    """The columns from 28 to 32 belong to a token that the mask cuts: dropping it would lose them."""
    image = scene(64, 64, 1)
    changed = image.copy()
    changed[:, 28:32] ^= 255
    assert seen(detector, image) != seen(detector, changed)

    def too_few(image, network, token, removed):
        return kept_tokens(image, network, token, removed + [0, 0, 4, 0] * (removed[..., 2:3] == 28))

    monkeypatch.setattr(token_dropping, "kept_tokens", too_few)
    careless = transformers_detector(*pair, mask_mode="drop", score_floor=0.0)
    assert seen(careless, image) == seen(careless, changed)


# --- the rest of the model ----------------------------------------------------------------------------------------


def test_where_nothing_is_removed_the_boxes_are_those_of_the_model_to_the_last_bit(detector, pair):
    by_fill, image = transformers_detector(*pair, score_floor=0.0), scene(70, 50, 1)
    assert seen(detector, image, (0, 0, 0, 0)) == detector([image])[0] == by_fill([image])[0]
    assert len(by_fill([image])[0])


def inputs(width, height, seed=0):
    return torch.randn(1, 3, height, width, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize(("width", "height"), [(64, 64), (96, 64), (32, 64)])
def test_with_all_tokens_kept_the_outputs_are_those_of_the_model_up_to_rounding(pair, width, height):
    model, drops, pixels = pair[0], make_token_dropper(pair[0]), inputs(width, height)
    count = (width // drops.token[0]) * (height // drops.token[1])
    with torch.inference_mode():
        whole, nothing = model(pixel_values=pixels), drops.blank(inputs(width, height, 1))
        parts = drops.run(pixels, torch.ones(count, dtype=torch.bool), nothing)
    torch.testing.assert_close(parts.logits, whole.logits, rtol=0, atol=1e-5)
    torch.testing.assert_close(parts.pred_boxes, whole.pred_boxes, rtol=0, atol=1e-5)


def attending_to(kept, eager):
    """Attention of the whole model that is told which tokens not to look at: what dropping must amount to."""

    def attend(module, query, key, value, attention_mask, **options):
        if type(module).__name__ in ("YolosSelfAttention", "RfDetrDinov2Attention"):
            looked_at = kept(key.shape[0], key.shape[2])
            attention_mask = torch.where(looked_at, 0.0, -torch.inf)[:, None, None]
        return eager(module, query, key, value, attention_mask, **options)

    return attend


def test_dropping_is_the_same_as_looking_away(pair, monkeypatch):
    """Against the whole model with attention switched off token by token, and with maps that are patched."""
    model, pixels, blank = pair[0], inputs(64, 64), inputs(64, 64, 1)
    drops = make_token_dropper(model)
    side = 64 // drops.token[0]
    kept = torch.rand(side, side, generator=torch.Generator().manual_seed(5)) < 0.4
    windows = kept.view(2, side // 2, 2, side // 2).transpose(1, 2).reshape(4, -1)
    with_class = torch.cat([torch.ones(4, 1, dtype=torch.bool), windows], dim=1)

    def looked_at(batch, length):
        if length == 1 + side * side + 5:
            return torch.cat([torch.ones(1), kept.flatten(), torch.ones(5)]).bool()[None]
        return with_class if batch == 4 else with_class.flatten()[None]

    def patched(module, given, output):
        output.feature_maps = [torch.where(kept, *maps) for maps in zip(output.feature_maps, empty, strict=True)]
        return output

    with torch.inference_mode():
        ours = drops.run(pixels, kept.flatten(), drops.blank(blank))
        hooks = []
        if hasattr(model, "model"):
            backbone = model.model.backbone.backbone
            empty = backbone(blank).feature_maps
            hooks.append(backbone.register_forward_hook(patched))
        code = __import__(type(model).__module__, fromlist=["eager_attention_forward"])
        monkeypatch.setattr(code, "eager_attention_forward", attending_to(looked_at, code.eager_attention_forward))
        before = model.config._attn_implementation
        try:
            model.set_attn_implementation("eager")
            theirs = model(pixel_values=pixels)
        finally:
            model.set_attn_implementation(before)
            for hook in hooks:
                hook.remove()
    torch.testing.assert_close(ours.logits, theirs.logits, rtol=0, atol=1e-5)
    torch.testing.assert_close(ours.pred_boxes, theirs.pred_boxes, rtol=0, atol=1e-5)
    with torch.inference_mode():
        assert (model(pixel_values=pixels).logits - ours.logits).abs().max() > 1e-3


def test_a_view_that_shows_nothing_is_what_the_filling_gives(detector):
    image = scene(64, 64, 1)
    gone = seen(detector, image, (0, 0, 64, 64))
    assert gone == seen(detector, noise(64, 64, 4), (0, 0, 64, 64))
    assert len(gone)


# --- as a detector ------------------------------------------------------------------------------------------------


def test_dropping_is_another_detector_and_says_so(yolos, tmp_path):
    for part in yolos:
        part.save_pretrained(tmp_path)
    fill, drop = (load_detector(f"transformers:{tmp_path}", mask_mode=way) for way in ("fill", "drop"))
    assert fill.fingerprint == load_detector(f"transformers:{tmp_path}").fingerprint
    assert drop.fingerprint == transformers_detector(*yolos, mask_mode="drop").fingerprint
    assert drop.fingerprint == fill.fingerprint.replace("(floor", "(drop floor")
    assert drop.names == ("person", "car")


def test_what_cannot_be_dropped_is_said_in_a_sentence(yolos):
    with pytest.raises(ObjectSeekerError, match=r"must be fill or drop: got 'crop'$"):
        transformers_detector(*yolos, mask_mode="crop")
    other = torch.nn.Linear(2, 2)
    other.config = SimpleNamespace(id2label={0: "thing"})
    with pytest.raises(ObjectSeekerError, match=r"^cannot drop tokens of Linear, only of .*: use mask_mode fill$"):
        transformers_detector(other, yolos[1], mask_mode="drop")
    padding = transformers.DetrImageProcessor(
        size={"height": 64, "width": 64}, do_pad=True, pad_size={"height": 80, "width": 80}
    )
    with pytest.raises(ObjectSeekerError, match="pads an image of 30x20, so its tokens cannot be dropped"):
        seen(transformers_detector(yolos[0], padding, mask_mode="drop"), scene(30, 20, 1))


@pytest.mark.skipif(find_spec("torchvision") is not None, reason="torchvision is installed")
def test_an_image_processor_that_needs_torchvision_says_so(rf_detr, tmp_path):
    rf_detr[0].save_pretrained(tmp_path)
    (tmp_path / "preprocessor_config.json").write_text('{"image_processor_type": "RfDetrImageProcessor"}')
    with pytest.raises(ObjectSeekerError, match=r"cannot load .*; it needs pip install 'objectseeker\[torchvision\]'$"):
        load_detector(f"transformers:{tmp_path}", mask_mode="drop")


def test_a_view_on_which_the_model_fails_has_no_boxes():
    box = RawBoxes(np.array([[1, 2, 5, 6]]), np.array([0.5]), np.array([0]))

    def planned(failing, error=ValueError):
        def see(filled, view):
            if view in failing:
                raise error("broken")
            return box

        return TokenDetector(
            names=("thing",), fingerprint="stub", detect_one=lambda image: box, score_floor=0.1, plan=lambda *sizes: see
        )

    image, removed = scene(8, 8, 1), np.zeros((2, 1, 4), np.int64)
    assert [len(view) for view in planned({1}).detect_views(image, removed, 114)] == [1, 0]
    with pytest.raises(ValueError, match="broken"):
        planned({0, 1}).detect_views(image, removed, 114)
    with pytest.raises(MemoryError):
        planned({1}, MemoryError).detect_views(image, removed, 114)


def test_want_of_memory_is_no_empty_view_whoever_says_so():
    def see(filled, view):
        return torch.empty(10**15) if view else NOTHING

    detector = TokenDetector(
        names=("thing",), fingerprint="stub", detect_one=see, score_floor=0.1, plan=lambda *sizes: see
    )
    with pytest.raises(RuntimeError, match="allocate"):
        detector.detect_views(scene(8, 8, 1), np.zeros((3, 1, 4), np.int64), 114)


def test_a_failure_that_stays_is_no_empty_image():
    dead = []

    def see(filled, view):
        if view == 2 or dead:
            dead.append(view)
            raise RuntimeError("device-side assert")
        return NOTHING

    detector = TokenDetector(
        names=("thing",), fingerprint="stub", detect_one=see, score_floor=0.1, plan=lambda *sizes: see
    )
    with pytest.raises(RuntimeError, match="assert"):
        detector.detect_views(scene(8, 8, 1), np.zeros((4, 1, 4), np.int64), 114)


def test_a_model_that_fails_on_every_masked_view_is_refused(yolos, monkeypatch):
    """As with a version of transformers whose layers return something else: nothing would be certified, silently."""
    model, processor = yolos
    detector = transformers_detector(model, processor, mask_mode="drop")
    layer = model.vit.encoder.layer[0]
    monkeypatch.setattr(layer, "forward", lambda hidden, forward=layer.forward: (forward(hidden),))
    with pytest.raises(ObjectSeekerError, match=r"tokens of this YolosForObjectDetection cannot be dropped \(.+\)"):
        seen(detector, scene(30, 20, 1))


def test_weights_of_half_precision_see_the_untouched_image_too(yolos):
    model, processor = copy.deepcopy(yolos[0]).half(), yolos[1]
    detector = transformers_detector(model, processor, mask_mode="drop")
    assert len(seen(detector, scene(64, 64, 1), UNTOUCHED))
    assert len(seen(detector, scene(64, 64, 1)))


def test_identity_knows_which_kernels_attend(yolos):
    model, processor = copy.deepcopy(yolos[0]), yolos[1]
    before = transformers_detector(model, processor).fingerprint
    model.set_attn_implementation("eager")
    assert transformers_detector(model, processor).fingerprint != before


def test_a_namesake_of_a_model_is_not_that_model(yolos):
    namesake = type("YolosForObjectDetection", (type(yolos[0]),), {"__module__": "mine"})
    model = copy.deepcopy(yolos[0])
    model.__class__ = namesake
    with pytest.raises(ObjectSeekerError, match="cannot drop tokens of YolosForObjectDetection"):
        transformers_detector(model, yolos[1], mask_mode="drop")
