//! Checks of pages in a real browser: on a screen and on a phone, no text is cut off, too small to
//! read, or broken inside a word. Needs `chromium`.

use std::fs;
use std::process::{Command, Output};

use serde_json::Value;

use crate::support::Bench;

/// Widths of a screen and of a phone, in CSS pixels.
const WIDTHS: [u32; 2] = [1280, 390];

/// Minimum size of text in a plot, in CSS pixels.
const LEAST_TEXT: f64 = 10.0;

/// Minimum contrast of text in a plot (WCAG 2, level AA).
const LEAST_CONTRAST: f64 = 4.5;

/// Script that measures the page in each frame, and writes the results, in the order of the frames,
/// where `--dump-dom` shows them.
const MEASURE: &str = r#"
const all = [];
const luminance = colour => {
  const [r, g, b] = colour.match(/\d+/g).map(part => part / 255).map(part => part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4);
  return 0.2126 * r + 0.7152 * g + 0.0722 * b;
};
const contrast = (one, other) => {
  const [low, high] = [luminance(one), luminance(other)].sort((a, b) => a - b);
  return (high + 0.05) / (low + 0.05);
};
const measure = (frame, number) => {
  const page = frame.contentDocument, view = frame.contentWindow;
  const found = { wide: [], broken: [], cut: [], texts: [], contrasts: [], cards: 0, plots: 0, first: '', width: view.innerWidth, dark: view.matchMedia('(prefers-color-scheme: dark)').matches };
  page.querySelectorAll('details').forEach(details => { details.open = true; });
  for (const card of page.querySelectorAll('html, main, .tile, figure, .table, table, td, th, h1, h2, h3, p, li')) {
    if (!card.getClientRects().length) continue;
    found.cards += 1;
    if (card.scrollWidth > card.clientWidth + 1) found.wide.push(card.tagName + '.' + card.className + ': ' + card.scrollWidth + ' in ' + card.clientWidth);
  }
  for (const svg of page.querySelectorAll('svg')) {
    const box = svg.getBoundingClientRect();
    if (!box.width) continue;
    found.plots += 1;
    const scale = box.width / svg.viewBox.baseVal.width;
    for (const text of svg.querySelectorAll('text')) {
      const size = parseFloat(view.getComputedStyle(text).fontSize) * scale;
      found.texts.push(size);
      found.contrasts.push(contrast(view.getComputedStyle(text).fill, view.getComputedStyle(svg.closest('figure')).backgroundColor));
      const place = text.getBoundingClientRect();
      if (place.left < box.left - 1 || place.right > box.right + 1 || place.top < box.top - 1 || place.bottom > box.bottom + 1) found.cut.push(text.textContent);
    }
  }
  const walker = page.createTreeWalker(page.body, NodeFilter.SHOW_TEXT);
  for (let node = walker.nextNode(); node; node = walker.nextNode()) {
    if (node.parentElement.closest('svg, style')) continue;
    for (const word of node.data.matchAll(/[^\s\/.:_,-]+/g)) {
      const range = page.createRange();
      range.setStart(node, word.index);
      range.setEnd(node, word.index + word[0].length);
      if (new Set([...range.getClientRects()].map(box => Math.round(box.top))).size > 1) found.broken.push(word[0]);
    }
  }
  const first = [...page.querySelectorAll('svg, table, .tile')].find(part => part.getClientRects().length);
  found.first = first ? first.tagName : '';
  all[number] = found;
  document.getElementById('found').textContent = JSON.stringify(all);
};
document.querySelectorAll('iframe').forEach((frame, number) => {
  frame.onload = () => measure(frame, number);
  frame.srcdoc = document.getElementById(frame.dataset.page).content.textContent;
});
"#;

/// Opens a page of the test's directory with these arguments, in the light or the dark scheme.
/// Returns `None`, with a message, if there is no browser; in CI that is a failure.
pub fn open(bench: &Bench, page: &str, dark: bool, arguments: &[&str]) -> Option<Output> {
    let browser = std::env::var("SUPERPACKET_BROWSER").unwrap_or_else(|_| "chromium".to_owned());
    if Command::new(&browser).arg("--version").output().is_err() {
        assert!(std::env::var_os("SUPERPACKET_REQUIRE_BROWSER").is_none(), "{browser} is missing");
        eprintln!("skipped: {browser} is missing");
        return None;
    }
    let output = Command::new(&browser)
        .args(["--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"])
        .arg(format!("--user-data-dir={}", bench.path("profile").display()))
        .arg(format!("--blink-settings=preferredColorScheme={}", u8::from(!dark)))
        .args(arguments)
        .arg(format!("file://{}", bench.path(page).display()))
        .output()
        .expect("the browser runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    Some(output)
}

/// Returns the browser's measurements for each width of each page, in this order, or `None` if
/// there is no browser. One run measures all, because a run takes seconds.
fn measure(bench: &Bench, pages: &[(&str, u64)], dark: bool) -> Option<Vec<Value>> {
    let mut text = "<!DOCTYPE html><meta charset=\"utf-8\">".to_owned();
    for (page, _) in pages {
        // The source of the page is inserted as an attribute's text, not as markup of the wrapper.
        let source = fs::read_to_string(bench.path(page))
            .expect("a page")
            .replace('&', "&amp;")
            .replace('<', "&lt;");
        text += &format!("<template id=\"{page}\">{source}</template>");
        for width in WIDTHS {
            text += &format!(
                "<iframe data-page=\"{page}\" width=\"{width}\" height=\"2000\" style=\"border:0\"></iframe>"
            );
        }
    }
    text += &format!("<pre id=\"found\"></pre><script>{MEASURE}</script>");
    fs::write(bench.path("wrapper.html"), text).expect("writes");
    let output = open(
        bench,
        "wrapper.html",
        dark,
        &["--window-size=1400,2200", "--virtual-time-budget=5000", "--dump-dom"],
    )?;
    let document = String::from_utf8(output.stdout).expect("UTF-8");
    let found = document
        .split_once("<pre id=\"found\">")
        .and_then(|(_, rest)| rest.split_once("</pre>"))
        .map(|(found, _)| found);
    let found = found
        .unwrap_or_else(|| panic!("nothing measured: {document}"))
        .replace("&gt;", ">")
        .replace("&lt;", "<")
        .replace("&amp;", "&");
    let found: Vec<Value> =
        serde_json::from_str(&found).unwrap_or_else(|error| panic!("{error}: {found}"));
    assert_eq!(found.len(), pages.len() * WIDTHS.len(), "{found:?}");
    Some(found)
}

/// Checks pages in each width, light and dark. Each page must have at least the given number of
/// plots.
#[track_caller]
pub fn assert_readable(bench: &Bench, pages: &[(&str, u64)]) {
    for dark in [false, true] {
        let Some(found) = measure(bench, pages, dark) else { return };
        let views = pages.iter().flat_map(|page| WIDTHS.map(|width| (page, width)));
        for ((&(page, least_plots), width), found) in views.zip(found) {
            let place = format!("{page}, {width} pixels, {}", if dark { "dark" } else { "light" });
            assert_eq!(
                (&found["dark"], found["width"].as_u64()),
                (&Value::Bool(dark), Some(u64::from(width))),
                "{place}"
            );
            assert!(
                found["cards"].as_u64() > Some(10) && found["plots"].as_u64() >= Some(least_plots),
                "{place}: {found}"
            );
            for fault in ["wide", "broken", "cut"] {
                assert_eq!(found[fault], Value::Array(Vec::new()), "{place}: {fault}");
            }
            let least = |what: &str| {
                let values = found[what].as_array().expect("numbers").iter();
                values.filter_map(Value::as_f64).fold(f64::INFINITY, f64::min)
            };
            let smallest = least("texts");
            assert!(
                smallest >= LEAST_TEXT && smallest.is_finite(),
                "{place}: text of {smallest} pixels"
            );
            let contrast = least("contrasts");
            assert!(
                contrast >= LEAST_CONTRAST && contrast.is_finite(),
                "{place}: text of contrast {contrast}"
            );
            let first = found["first"].as_str();
            assert!(
                matches!(first, Some("svg" | "DIV")),
                "{place}: {first:?}, not a plot or tiles"
            );
        }
    }
}
