"""How well every text of a page can be told from what is behind it, as WCAG counts it."""

import re
from typing import Any

from tests.e2e.browser import Page

LEAST = 4.5  # WCAG 2, level AA
# Every visible text with its colour and the backgrounds behind it, the nearest first.
TEXTS = """(() => {
  const styled = getComputedStyle;
  const behind = (element) => {
    const found = [];
    for (let at = element; at; at = at.parentElement) found.push(styled(at).backgroundColor);
    return found;
  };
  const boxed = (text) => {
    const box = text.parentNode.querySelector("rect");
    const [inner, outer] = [text, box].map((one) => one.getBBox());
    return inner.y < outer.y + outer.height ? [styled(box).fill] : behind(text);
  };
  const isText = (element) => [...element.childNodes].some((n) => n.nodeType === 3 && n.data.trim())
    || element.matches("input:not([type=range]), textarea, select");
  return [...document.body.querySelectorAll("*")]
    .filter((element) => isText(element) && element.getClientRects().length)
    .filter((element) => !element.disabled && !element.matches("title, option"))
    .map((element) => element instanceof SVGElement
      ? { text: element.textContent, front: styled(element).fill, behind: boxed(element) }
      : { text: element.textContent, front: styled(element).color, behind: behind(element) });
})()"""


def faint_texts(page: Page) -> tuple[int, list[tuple[str, float]]]:
    """How many texts there are, and those below the least contrast, with theirs."""
    found = page.look(TEXTS)
    ratios = [(entry["text"].strip()[:40], _ratio(entry)) for entry in found]
    return len(found), [(text, ratio) for text, ratio in ratios if ratio < LEAST]


def _ratio(entry: dict[str, Any]) -> float:
    paper = (255.0, 255.0, 255.0)
    for layer in reversed([_colour(text) for text in entry["behind"]]):
        paper = _over(layer, paper)
    lighter, darker = sorted(
        (_luminance(_over(_colour(entry["front"]), paper)), _luminance(paper)), reverse=True
    )
    return (lighter + 0.05) / (darker + 0.05)


def _colour(text: str) -> tuple[float, float, float, float]:
    red, green, blue, *alpha = (float(number) for number in re.findall(r"[\d.]+", text))
    return red, green, blue, alpha[0] if alpha else 1.0


def _over(
    layer: tuple[float, float, float, float], paper: tuple[float, float, float]
) -> tuple[float, float, float]:
    red, green, blue = (
        layer[3] * front + (1 - layer[3]) * back for front, back in zip(layer, paper, strict=False)
    )
    return red, green, blue


def _luminance(colour: tuple[float, float, float]) -> float:
    shares = (channel / 255 for channel in colour)
    linear = (
        share / 12.92 if share <= 0.04045 else ((share + 0.055) / 1.055) ** 2.4 for share in shares
    )
    return sum(
        weight * share for weight, share in zip((0.2126, 0.7152, 0.0722), linear, strict=True)
    )
