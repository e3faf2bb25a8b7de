//! What is said of kevtmon in its documents, against the code.

mod documents;
mod incidents;
mod readme;
