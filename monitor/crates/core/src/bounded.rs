//! Lists of the newest: of more than there is room for, the oldest goes.

use std::collections::VecDeque;

pub(super) fn push<T>(all: &mut VecDeque<T>, most: usize, newest: T) {
    if all.len() >= most {
        all.pop_front();
    }
    all.push_back(newest);
}
