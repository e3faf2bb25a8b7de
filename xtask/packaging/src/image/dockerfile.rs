//! A Dockerfile, as far as ours goes: one file in an empty image. An instruction that is not known is an error.

use std::collections::BTreeMap;

use anyhow::{Context as _, Result, bail, ensure};

/// What it says.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Dockerfile {
    /// Where the daemon is in the image.
    pub(super) place: String,
    pub(super) labels: BTreeMap<String, String>,
    /// As `NAME=VALUE`.
    pub(super) environment: Vec<String>,
    pub(super) entry_point: Vec<String>,
    pub(super) arguments: Vec<String>,
}

impl Dockerfile {
    pub(super) fn parse(text: &str) -> Result<Self> {
        let mut file = Self::default();
        let lines = text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#'));
        let joined = lines.collect::<Vec<_>>().join("\n").replace("\\\n", " ");
        for line in joined.lines() {
            let (instruction, rest) = line.split_once(' ').with_context(|| line.to_owned())?;
            file.take(instruction, rest.trim()).with_context(|| line.to_owned())?;
        }
        ensure!(!file.place.is_empty(), "it copies nothing");
        Ok(file)
    }

    fn take(&mut self, instruction: &str, rest: &str) -> Result<()> {
        match instruction {
            "FROM" => ensure!(rest == "scratch", "the image is not empty at first"),
            "LABEL" => self.labels.extend(pairs(rest)?),
            "ENV" => {
                self.environment
                    .extend(pairs(rest)?.into_iter().map(|(name, value)| format!("{name}={value}")));
            }
            "COPY" => {
                let place =
                    rest.strip_prefix("kevtmon /").context("something else than the daemon is copied")?;
                ensure!(self.place.is_empty() && !place.contains(' '), "more than the daemon is copied");
                self.place = format!("/{place}");
            }
            "ENTRYPOINT" => self.entry_point = serde_json::from_str(rest)?,
            "CMD" => self.arguments = serde_json::from_str(rest)?,
            other => bail!("{other} is not known"),
        }
        Ok(())
    }
}

/// `NAME=VALUE NAME="VALUE WITH SPACES"`.
fn pairs(text: &str) -> Result<Vec<(String, String)>> {
    let (mut pairs, mut rest) = (Vec::new(), text.trim_start());
    while !rest.is_empty() {
        let (name, after) = rest.split_once('=').context("a name without a value")?;
        let (value, after) = match after.strip_prefix('"') {
            Some(quoted) => quoted.split_once('"').context("a quote without its end")?,
            None => after.split_once(' ').unwrap_or((after, "")),
        };
        ensure!(!value.contains(['\\', '$']), "{value} has an escape or a variable");
        pairs.push((name.to_owned(), value.to_owned()));
        rest = after.trim_start();
    }
    Ok(pairs)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_environment_and_arguments_are_read_over_several_lines() {
        let text = "# what it is\nFROM scratch\nLABEL a=\"b c\" \\\n      d.e=f\nCOPY kevtmon /bin/kevtmon\n\
                    # why\nENV PATH=/bin\nENTRYPOINT [\"/bin/kevtmon\", \"--x\"]\nCMD [\"run\"]\n";
        let file = Dockerfile::parse(text).unwrap();
        let labels = [("a", "b c"), ("d.e", "f")].map(|(name, value)| (name.to_owned(), value.to_owned()));
        assert_eq!(file.labels, BTreeMap::from(labels));
        assert_eq!((file.place.as_str(), file.environment), ("/bin/kevtmon", vec!["PATH=/bin".to_owned()]));
        assert_eq!(
            (file.entry_point, file.arguments),
            (vec!["/bin/kevtmon".to_owned(), "--x".to_owned()], vec!["run".to_owned()])
        );
    }

    #[test]
    fn what_would_be_left_out_is_refused() {
        for (line, complaint) in [
            ("FROM debian", "not empty"),
            ("RUN make", "RUN is not known"),
            ("USER 1", "USER is not known"),
            ("COPY . /", "something else"),
            ("COPY kevtmon /a /b", "more than"),
            ("ENV A=$B", "a variable"),
            ("LABEL a", "without a value"),
        ] {
            let text = format!("COPY kevtmon /a\n{line}\n");
            let text = if line.starts_with("COPY") { line } else { &text };
            let error = format!("{:#}", Dockerfile::parse(text).unwrap_err());
            assert!(error.contains(complaint), "{line}: {error}");
        }
        assert!(Dockerfile::parse("FROM scratch\n").unwrap_err().to_string().contains("copies nothing"));
    }
}
