//! Presentation of reports: numbers, tables, charts and HTML pages.
//!
//! The commands, the lab and the program hand over rows and series; only this module writes markup.
//! Tables in a terminal are laid out by the program, which knows how wide it is.

mod chart;
mod curves;
mod dots;
mod escape;
mod log_axis;
mod number;
mod page;
mod table;

pub use chart::{Chart, ColumnPairs, NARROW, Steps, WIDE, svg_file};
pub use curves::Curves;
pub use dots::{Dot, DotColour, DotLine, DotRow, DotShape, DotStyle, Dots};
pub use escape::markdown;
pub use number::{
    NOTHING, average, factor, factor_digits, grouped, number, percent, printable, range, ratio,
    shortest,
};
pub use page::{CSS, Colour, Page};
pub use table::{Cell, Column, Table};
