//! Work that runs side by side, with the output of each piece shown whole and in their order: what is at the head is
//! shown as it comes, what is behind it is kept until its turn.

use std::io::{self, Write};
use std::sync::{Mutex, PoisonError};

/// Where the pieces write.
pub(crate) struct Transcript<W> {
    state: Mutex<State<W>>,
}

struct State<W> {
    out: W,
    /// The piece that is shown as it comes.
    turn: usize,
    pieces: Vec<Piece>,
}

#[derive(Default)]
struct Piece {
    kept: Vec<u8>,
    ended: bool,
}

impl<W: Write + Send> Transcript<W> {
    /// Of so many pieces, shown on `out`.
    pub(crate) fn new(pieces: usize, out: W) -> Self {
        let pieces = (0..pieces).map(|_| Piece::default()).collect();
        Self { state: Mutex::new(State { out, turn: 0, pieces }) }
    }

    /// The output of the piece at this place in the order; it ends when this is dropped.
    pub(crate) fn piece(&self, index: usize) -> Output<'_, W> {
        Output { transcript: self, index }
    }
}

impl<W: Write> State<W> {
    fn end(&mut self, index: usize) -> io::Result<()> {
        self.pieces[index].ended = true;
        while self.pieces.get(self.turn).is_some_and(|piece| piece.ended) {
            self.turn += 1;
            if let Some(piece) = self.pieces.get_mut(self.turn) {
                self.out.write_all(&std::mem::take(&mut piece.kept))?;
            }
        }
        self.out.flush()
    }
}

/// What one piece writes.
pub(crate) struct Output<'a, W: Write + Send> {
    transcript: &'a Transcript<W>,
    index: usize,
}

impl<W: Write + Send> Write for Output<'_, W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let mut state = self.transcript.state.lock().unwrap_or_else(PoisonError::into_inner);
        if state.turn == self.index {
            state.out.write_all(bytes)?;
        } else {
            state.pieces[self.index].kept.extend_from_slice(bytes);
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl<W: Write + Send> Drop for Output<'_, W> {
    fn drop(&mut self) {
        // The reader is gone; the verdict is an exit code, too.
        let _ = self.transcript.state.lock().unwrap_or_else(PoisonError::into_inner).end(self.index);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn output_is_whole_and_in_order_whoever_ends_first() {
        let transcript = Transcript::new(3, Vec::new());
        let (mut first, mut second, mut third) =
            (transcript.piece(0), transcript.piece(1), transcript.piece(2));
        let shown = || {
            let state = transcript.state.lock().expect("no panic");
            String::from_utf8(state.out.clone()).expect("text")
        };
        third.write_all(b"c1 ").expect("written");
        first.write_all(b"a1 ").expect("written");
        second.write_all(b"b1 ").expect("written");
        assert_eq!(shown(), "a1 ");
        drop(third);
        first.write_all(b"a2 ").expect("written");
        drop(first);
        assert_eq!(shown(), "a1 a2 b1 ");
        second.write_all(b"b2 ").expect("written");
        assert_eq!(shown(), "a1 a2 b1 b2 ");
        drop(second);
        assert_eq!(shown(), "a1 a2 b1 b2 c1 ");
    }
}
