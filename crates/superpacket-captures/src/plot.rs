//! Plots as SVG that takes its colours from the page around it.
//!
//! Plotters knows fixed colours only, so each role is drawn in a colour of its own that is then
//! replaced by the page's variable: dark and light follow the reader's setting. No text of a
//! capture gets into a plot.

use plotters::coord::Shift;
use plotters::prelude::*;

use crate::error::Error;

/// The role of text.
pub const INK: RGBColor = RGBColor(1, 2, 3);
/// The role of axes' text.
pub const MUTED: RGBColor = RGBColor(1, 2, 4);
/// The role of lines behind the plot.
pub const GRID: RGBColor = RGBColor(1, 2, 5);
/// The role of what was there before.
pub const BEFORE: RGBColor = RGBColor(1, 2, 6);
/// The role of what is there afterwards.
pub const AFTER: RGBColor = RGBColor(1, 2, 7);
/// What each becomes.
const ROLES: [(&str, &str); 5] = [
    ("#010203", "var(--ink)"),
    ("#010204", "var(--muted)"),
    ("#010205", "var(--grid)"),
    ("#010206", "var(--before)"),
    ("#010207", "var(--after)"),
];

/// How wide plots are on a screen, in units of their own. One unit is about a CSS pixel, so that
/// text is never too small to read.
pub const WIDE: u32 = 860;
/// How wide they are on a phone, where the page shows these in place of the others.
pub const NARROW: u32 = 330;

/// Height of a plot's text, in the same units.
pub const TEXT: u32 = 14;

/// A plot of both widths, of which the page shows the one that fits.
///
/// # Errors
/// If `plot` fails.
pub fn both(plot: impl Fn(u32) -> Result<String, Error>) -> Result<String, Error> {
    Ok(format!(
        "<div class=\"wide\">{}</div><div class=\"narrow\">{}</div>",
        plot(WIDE)?,
        plot(NARROW)?
    ))
}

/// Where plots are drawn.
pub type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;
/// Whether that worked.
pub type Drawn = Result<(), Box<dyn std::error::Error + Send + Sync>>;

/// Draws a plot of this name and size.
///
/// # Errors
/// [`Error::Plot`] if `plot` fails.
pub fn draw(
    title: &str,
    (width, height): (u32, u32),
    plot: impl FnOnce(&Area<'_>) -> Drawn,
) -> Result<String, Error> {
    let mut svg = String::new();
    {
        let area = SVGBackend::with_string(&mut svg, (width, height)).into_drawing_area();
        let drawn = plot(&area).and_then(|()| Ok(area.present()?));
        drawn.map_err(|error| Error::Plot(error.to_string()))?;
    }
    for (colour, role) in ROLES {
        svg = svg.replace(colour, role);
    }
    // Inside a page, SVG needs no namespace.
    let svg = svg.replacen(" xmlns=\"http://www.w3.org/2000/svg\"", "", 1);
    // A name for those who do not see it; the page's width decides over the plot's.
    Ok(svg.replacen("<svg ", &format!("<svg role=\"img\" aria-label=\"{title}\" "), 1))
}
