"""The shared parts of all plots: colours, a light and a dark scheme, and rendering by matplotlib."""

from __future__ import annotations

import base64
import html
import io
import warnings
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from harness.errors import RequirementError

if TYPE_CHECKING:
    from collections.abc import Callable

#: Okabe and Ito's colours without black and yellow; people with any colour vision can distinguish them.
COLOURS = ("#0072B2", "#E69F00", "#009E73", "#D55E00", "#CC79A7", "#56B4E9", "#8C6D31", "#7F7F7F")


@dataclass(frozen=True, kw_only=True)
class Scheme:
    """The colours of a picture, except the colours of data."""

    name: str
    text: str
    grid: str
    background: str


LIGHT = Scheme(name="light", text="#1b1b1b", grid="#d9d9d9", background="#ffffff")
DARK = Scheme(name="dark", text="#e6e6e6", grid="#3d434b", background="#15181c")


def render_figure(
    draw: Callable[[Any], None],
    size_in: tuple[float, float],
    scheme: Scheme,
    *,
    form: str,
    salt: str,
    dpi: int = 150,
    has_glyphs: bool = True,
) -> bytes:
    """Call `draw` with a new figure, and return the picture; `form` is `svg` or `png`.

    An SVG contains its words as text and not as shapes: it is small, can be searched, and uses the
    reader's font. The ids in an SVG depend only on `salt`, so that two drawings of the same data
    have the same bytes. Raises RequirementError if matplotlib is missing.
    """
    try:
        import matplotlib as mpl  # noqa: PLC0415 - an optional dependency, slow to import
        from matplotlib.figure import Figure  # noqa: PLC0415
    except ImportError as error:
        raise RequirementError(
            "Plots need matplotlib; install `gpu-node-harness[plots]`."
        ) from error
    style: dict[Any, object] = {
        "text.color": scheme.text,
        "axes.labelcolor": scheme.text,
        "axes.edgecolor": scheme.grid,
        "xtick.color": scheme.text,
        "ytick.color": scheme.text,
        "grid.color": scheme.grid,
        "figure.facecolor": scheme.background,
        "axes.facecolor": scheme.background,
        "legend.facecolor": scheme.background,
        "legend.edgecolor": scheme.grid,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "font.size": 10.5,
        # A name such as `cost$a$` must not be drawn as a formula.
        "text.parse_math": False,
        "svg.hashsalt": salt,
        "svg.fonttype": "path" if has_glyphs else "none",
    }
    with mpl.rc_context(style), warnings.catch_warnings():
        # matplotlib's font may lack a character, but the reader's font has it.
        warnings.simplefilter("ignore", UserWarning)
        figure = Figure(figsize=size_in, layout="constrained")
        draw(figure)
        buffer = io.BytesIO()
        metadata = {"Date": None} if form == "svg" else {"Software": None}
        figure.savefig(buffer, format=form, dpi=dpi, metadata=metadata)
    return buffer.getvalue()


def picture(light: bytes, dark: bytes, words: str) -> str:
    """Return HTML that shows an SVG, light or dark as the reader prefers; `words` describe the picture."""

    def source(content: bytes) -> str:
        return f"data:image/svg+xml;base64,{base64.b64encode(content).decode()}"

    return (
        f'<picture><source media="(prefers-color-scheme: dark)" srcset="{source(dark)}">'
        f'<img src="{source(light)}" alt="{html.escape(words)}"></picture>'
    )
