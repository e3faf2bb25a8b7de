//! Values that serde leaves out.

/// Whether a value is that of its type's `Default`, for `skip_serializing_if`.
pub fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

/// The same, of numbers.
pub use self::is_default as is_zero;
