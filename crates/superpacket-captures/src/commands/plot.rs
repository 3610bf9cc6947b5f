//! Draws plots as SVG that takes its colours from the page around it.
//!
//! Plotters has only fixed colours. So each role is drawn in a placeholder colour, which is then
//! replaced by a variable of the page: the plot follows the reader's dark or light setting. Plots
//! contain no text from captures.

use plotters::coord::Shift;
use plotters::prelude::*;

use crate::commands::error::Error;

/// Placeholder colour for text.
pub const INK: RGBColor = RGBColor(1, 2, 3);
/// Placeholder colour for the text of axes.
pub const MUTED: RGBColor = RGBColor(1, 2, 4);
/// Placeholder colour for grid lines.
pub const GRID: RGBColor = RGBColor(1, 2, 5);
/// Placeholder colour for values before aggregation.
pub const BEFORE: RGBColor = RGBColor(1, 2, 6);
/// Placeholder colour for values after aggregation.
pub const AFTER: RGBColor = RGBColor(1, 2, 7);
/// The placeholder colours, and the page's variables that replace them.
const ROLES: [(&str, &str); 5] = [
    ("#010203", "var(--ink)"),
    ("#010204", "var(--muted)"),
    ("#010205", "var(--grid)"),
    ("#010206", "var(--before)"),
    ("#010207", "var(--after)"),
];

/// Width of plots on a screen. One unit is about one CSS pixel, so that text is never too small to
/// read.
pub const WIDE: u32 = 860;
/// Width of plots on a phone, in the same unit.
pub const NARROW: u32 = 330;

/// Height of text in plots, in the same unit.
pub const TEXT: u32 = 14;

/// Returns a plot in both widths; the page shows the one that fits.
///
/// # Errors
/// Any error of `plot`.
pub fn both(plot: impl Fn(u32) -> Result<String, Error>) -> Result<String, Error> {
    Ok(format!(
        "<div class=\"wide\">{}</div><div class=\"narrow\">{}</div>",
        plot(WIDE)?,
        plot(NARROW)?
    ))
}

/// The drawing area of a plot.
pub type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;
/// The result of drawing.
pub type Drawn = Result<(), Box<dyn std::error::Error + Send + Sync>>;

/// Draws a plot with this title and size, and returns it as SVG.
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
    // SVG inside HTML needs no namespace.
    let svg = svg.replacen(" xmlns=\"http://www.w3.org/2000/svg\"", "", 1);
    // A label for screen readers; the page's width overrides that of the plot.
    Ok(svg.replacen("<svg ", &format!("<svg role=\"img\" aria-label=\"{title}\" "), 1))
}
