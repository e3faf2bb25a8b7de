//! Numbers that serde leaves out.

/// Whether a number is 0, for `skip_serializing_if`.
pub fn is_zero<T: Default + PartialEq>(number: &T) -> bool {
    *number == T::default()
}
