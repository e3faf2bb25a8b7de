//! A scrape of the daemon's metrics, in the Prometheus text format.

use std::collections::BTreeMap;

/// One sample.
#[derive(Debug, Clone, PartialEq)]
pub struct Sample {
    /// Name of the metric, with `_bucket` and the like.
    pub name: String,
    /// Its labels.
    pub labels: BTreeMap<String, String>,
    /// Its value.
    pub value: f64,
}

/// All samples of one answer.
#[derive(Debug, Clone)]
pub struct Scrape {
    /// The answer as it came.
    pub text: String,
    /// Its samples, in order.
    pub samples: Vec<Sample>,
}

impl Scrape {
    /// Reads an answer; panics at a line that is none.
    #[must_use]
    pub fn parse(text: String) -> Self {
        let lines = text.lines().filter(|line| !line.is_empty() && !line.starts_with('#'));
        let samples =
            lines.map(|line| sample(line).unwrap_or_else(|| panic!("not a sample: {line}"))).collect();
        Self { text, samples }
    }

    /// Sum of the samples of this name that carry these labels; `None` when there is none.
    #[must_use]
    pub fn sum(&self, name: &str, labels: &[(&str, &str)]) -> Option<f64> {
        let fits = |sample: &&Sample| {
            sample.name == name
                && labels.iter().all(|(key, value)| sample.labels.get(*key).is_some_and(|is| is == value))
        };
        let values = self.samples.iter().filter(fits).map(|sample| sample.value).collect::<Vec<_>>();
        (!values.is_empty()).then(|| values.iter().sum())
    }

    /// As [`Scrape::sum`], where a counter that has not counted yet is 0.
    #[must_use]
    pub fn count(&self, name: &str, labels: &[(&str, &str)]) -> f64 {
        self.sum(name, labels).unwrap_or(0.0)
    }

    /// Names of metric families, by their `# TYPE` lines.
    #[must_use]
    pub fn families(&self) -> Vec<&str> {
        let lines = self.text.lines().filter_map(|line| line.strip_prefix("# TYPE "));
        lines.filter_map(|rest| rest.split_whitespace().next()).collect()
    }
}

fn sample(line: &str) -> Option<Sample> {
    let (series, value) = line.rsplit_once(' ')?;
    let value = value.parse().ok()?;
    let Some((name, rest)) = series.split_once('{') else {
        return Some(Sample { name: series.to_owned(), labels: BTreeMap::new(), value });
    };
    let mut labels = BTreeMap::new();
    let mut rest = rest.strip_suffix('}')?;
    while let Some((key, tail)) = rest.split_once("=\"") {
        let end = tail.find('"')?;
        labels.insert(key.trim_start_matches(',').to_owned(), tail[..end].to_owned());
        rest = &tail[end + 1..];
    }
    Some(Sample { name: name.to_owned(), labels, value })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_are_summed_over_the_labels_that_are_not_asked_for() {
        let scrape = Scrape::parse(
            "# TYPE a counter\na{x=\"1\",y=\"p\"} 2\na{x=\"1\",y=\"q\"} 3\na{x=\"2\",y=\"p\"} 5\nb 7\n"
                .to_owned(),
        );
        assert_eq!(scrape.sum("a", &[("x", "1")]), Some(5.0));
        assert_eq!(scrape.sum("b", &[]), Some(7.0));
        assert_eq!(scrape.sum("c", &[]), None);
        assert_eq!(scrape.families(), ["a"]);
    }
}
