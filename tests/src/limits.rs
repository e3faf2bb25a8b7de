//! What a benchmark measured, and beside what it may be.

use std::fmt::{self, Display};
use std::process::ExitCode;

/// The least, the median and the greatest.
pub fn spread(values: &mut [f64]) -> (f64, f64, f64) {
    values.sort_by(f64::total_cmp);
    let last = values.len().saturating_sub(1);
    (values[0], values[last / 2], values[last])
}

/// A table of figures.
#[derive(Debug, Default)]
pub struct Limits(Vec<Row>);

#[derive(Debug)]
struct Row {
    what: String,
    limit: String,
    measured: String,
    is_kept: bool,
}

impl Limits {
    /// Adds a figure that must not pass its limit.
    pub fn at_most(&mut self, what: &str, limit: f64, measured: f64, unit: &str) {
        self.add(what, format!("<= {limit} {unit}"), format!("{measured:.2} {unit}"), measured <= limit);
    }

    /// Adds a figure that must reach its limit.
    pub fn at_least(&mut self, what: &str, limit: f64, measured: f64, unit: &str) {
        self.add(what, format!(">= {limit} {unit}"), format!("{measured:.2} {unit}"), measured >= limit);
    }

    /// Adds how many there are, which must be as many as this.
    pub fn all(&mut self, what: &str, number: usize, measured: usize) {
        self.add(what, number.to_string(), measured.to_string(), measured == number);
    }

    /// Adds anything else.
    pub fn add(&mut self, what: &str, limit: impl Into<String>, measured: impl Into<String>, is_kept: bool) {
        let (limit, measured) = (limit.into(), measured.into());
        self.0.push(Row { what: what.to_owned(), limit, measured, is_kept });
    }

    /// Whether nothing was added.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Success if every limit is kept.
    #[must_use]
    pub fn exit_code(&self) -> ExitCode {
        if self.0.iter().all(|row| row.is_kept) { ExitCode::SUCCESS } else { ExitCode::FAILURE }
    }
}

impl Display for Limits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let width =
            |of: fn(&Row) -> &String| self.0.iter().map(|row| of(row).chars().count()).max().unwrap_or(0);
        let (what, limit) = (width(|row| &row.what), width(|row| &row.limit).max("limit".len()));
        let measured = width(|row| &row.measured).max("measured".len());
        write!(f, "{:what$}  {:>limit$}  {:>measured$}", "", "limit", "measured")?;
        for row in &self.0 {
            let verdict = if row.is_kept { "ok" } else { "MISSED" };
            write!(f, "\n{:what$}  {:>limit$}  {:>measured$}  {verdict}", row.what, row.limit, row.measured)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_limit_that_is_missed_fails_the_benchmark_and_is_marked() {
        let mut limits = Limits::default();
        limits.at_most("memory", 32.0, 31.5, "MB");
        limits.all("incidents", 8, 8);
        limits.at_least("speed", 1.3, 1.3, "x");
        assert_eq!(format!("{:?}", limits.exit_code()), format!("{:?}", ExitCode::SUCCESS));
        limits.at_most("processor", 20.0, 20.5, "%");
        assert_eq!(format!("{:?}", limits.exit_code()), format!("{:?}", ExitCode::FAILURE));
        assert_eq!(
            limits.to_string(),
            "              limit  measured\n\
             memory     <= 32 MB  31.50 MB  ok\n\
             incidents         8         8  ok\n\
             speed      >= 1.3 x    1.30 x  ok\n\
             processor   <= 20 %   20.50 %  MISSED"
        );
    }
}
