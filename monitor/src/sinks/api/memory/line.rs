//! The JSON of an event, in little memory.
//!
//! Events of one kind by one source differ in a few words. So what is kept for long is compressed against an earlier one.

use std::sync::Arc;

use lz4_flex::block::{compress_with_dict, decompress_with_dict};

/// The JSON of an event.
#[derive(Debug, Clone)]
pub(super) enum Line {
    /// As it is.
    Plain(Arc<str>),
    /// What it differs in from another.
    Packed {
        /// The other one.
        model: Arc<str>,
        difference: Arc<[u8]>,
        /// Its own length, in bytes.
        length: usize,
    },
}

impl Line {
    /// The length of the JSON, in bytes.
    pub(super) fn len(&self) -> usize {
        match self {
            Self::Plain(text) => text.len(),
            Self::Packed { length, .. } => *length,
        }
    }

    /// The JSON; empty if it cannot be read back, which is told.
    pub(super) fn text(&self) -> Arc<str> {
        match self {
            Self::Plain(text) => Arc::clone(text),
            Self::Packed { model, difference, length } => {
                let bytes = decompress_with_dict(difference, *length, model.as_bytes()).ok();
                bytes.and_then(|bytes| String::from_utf8(bytes).ok()).map_or_else(
                    || {
                        tracing::error!("an event in memory cannot be read back");
                        Arc::default()
                    },
                    Arc::from,
                )
            }
        }
    }

    /// The same in less memory, if it resembles the other one enough.
    pub(super) fn packed(&self, model: &Arc<str>) -> Option<Self> {
        let Self::Plain(text) = self else { return None };
        let difference = compress_with_dict(text.as_bytes(), model.as_bytes());
        (difference.len() < text.len() / 2).then(|| Self::Packed {
            model: Arc::clone(model),
            difference: difference.into(),
            length: text.len(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_the_same_after_it_was_packed() {
        let line = |pid: u32, name: &str| -> Arc<str> {
            format!(r#"{{"kind":"neighbor.deleted","actor":{{"pid":{pid},"comm":"{name}"}}}}"#).into()
        };
        let model = line(1, "ip");
        for text in [line(2, "ip"), line(4_294_967_295, "größer"), Arc::clone(&model)] {
            let packed = Line::Plain(Arc::clone(&text)).packed(&model).expect("they are alike");
            let Line::Packed { difference, .. } = &packed else { panic!("{packed:?}") };
            assert!(difference.len() < text.len() / 2);
            assert_eq!(packed.len(), text.len());
            assert_eq!(packed.text(), text);
            assert!(packed.packed(&model).is_none(), "it is packed already");
        }
    }

    #[test]
    fn a_line_that_resembles_no_other_stays_as_it_is() {
        let model: Arc<str> = "0123456789".into();
        for text in ["", "{}", "abcdefghijklmnopqrstuvwxyz"] {
            assert!(Line::Plain(text.into()).packed(&model).is_none(), "{text}");
        }
    }
}
