//! The stack that the programs need, found after linking: kernels before 6.6 count it in a way of their own, and the kernel
//! of the machine that builds may well load what an old one refuses.
//!
//! In: the linked object. Out: the deepest chain of calls of each program, or an error with those that are too deep.

mod functions;

use std::collections::HashMap;
use std::fmt;
use std::fs;
use std::path::Path;

use anyhow::{Context as _, Result, bail};

use self::functions::Function;

/// What a program and all that it calls may use together (`MAX_BPF_STACK`).
const MOST_BYTES: u64 = 512;

/// How many functions may be in a chain of calls (`MAX_CALL_FRAMES`).
const MOST_FRAMES: u64 = 8;

/// Those kernels round each function's part up to a multiple of this, and count it for one that uses nothing, too.
const ROUNDED_TO: u64 = 32;

/// An error if an old kernel would refuse a program of the object at `path` for its stack.
pub(super) fn check(path: &Path) -> Result<()> {
    let content = fs::read(path).with_context(|| format!("the linker left no {}", path.display()))?;
    let functions = functions::read(&content).with_context(|| format!("cannot read {}", path.display()))?;
    judge(&functions)
}

fn judge(functions: &[Function]) -> Result<()> {
    let too_deep = too_deep(functions)?;
    if too_deep.is_empty() {
        return Ok(());
    }
    let listed: String = too_deep.iter().map(|chain| format!("\n  {chain}")).collect();
    bail!(
        "kernels before 6.6 refuse programs whose calls need more than {MOST_BYTES} bytes of stack, with each \
         function's rounded up to {ROUNDED_TO}, or are more than {MOST_FRAMES} deep:{listed}"
    );
}

/// The chains that are too deep: of each program the one of the most bytes, else the one of the most functions.
fn too_deep(functions: &[Function]) -> Result<Vec<Chain<'_>>> {
    let mut by_bytes = Search::new(functions, rounded);
    let mut by_frames = Search::new(functions, |_function| 1);
    let mut found = Vec::new();
    for program in (0..functions.len()).filter(|index| functions[*index].is_program) {
        let (bytes, frames) = (by_bytes.deepest(program)?, by_frames.deepest(program)?);
        if bytes.weight > MOST_BYTES {
            found.push(by_bytes.chain(program)?);
        } else if frames.weight > MOST_FRAMES {
            found.push(by_frames.chain(program)?);
        }
    }
    Ok(found)
}

/// What those kernels count for a function.
fn rounded(function: &Function) -> u64 {
    function.stack.max(1).next_multiple_of(ROUNDED_TO)
}

/// Functions that call each other, from a program on.
#[derive(Debug)]
struct Chain<'a>(Vec<&'a Function>);

impl fmt::Display for Chain<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bytes: u64 = self.0.iter().map(|function| rounded(function)).sum();
        write!(f, "{bytes} bytes: ")?;
        for (place, function) in self.0.iter().enumerate() {
            let arrow = if place == 0 { "" } else { " -> " };
            write!(f, "{arrow}{} ({})", function.name, function.stack)?;
        }
        Ok(())
    }
}

/// The deepest chains, where each function weighs something.
struct Search<'a> {
    functions: &'a [Function],
    weigh: fn(&Function) -> u64,
    state: HashMap<usize, State>,
}

#[derive(Clone, Copy)]
enum State {
    /// Its callees are being looked at: who finds this is one of them.
    Open,
    Done(Deepest),
}

/// The deepest chain from a function on.
#[derive(Clone, Copy)]
struct Deepest {
    weight: u64,
    callee: Option<usize>,
}

impl<'a> Search<'a> {
    fn new(functions: &'a [Function], weigh: fn(&Function) -> u64) -> Self {
        Self { functions, weigh, state: HashMap::new() }
    }

    fn deepest(&mut self, index: usize) -> Result<Deepest> {
        let function = &self.functions[index];
        match self.state.insert(index, State::Open) {
            Some(State::Open) => bail!("{} is called by itself, or by what it calls", function.name),
            Some(done @ State::Done(deepest)) => {
                self.state.insert(index, done);
                return Ok(deepest);
            }
            None => {}
        }
        let mut deepest = Deepest { weight: 0, callee: None };
        for &callee in &function.callees {
            let weight = self.deepest(callee)?.weight;
            if weight > deepest.weight {
                deepest = Deepest { weight, callee: Some(callee) };
            }
        }
        deepest.weight += (self.weigh)(function);
        self.state.insert(index, State::Done(deepest));
        Ok(deepest)
    }

    fn chain(&mut self, program: usize) -> Result<Chain<'a>> {
        let mut chain = Vec::new();
        let mut next = Some(program);
        while let Some(index) = next {
            chain.push(&self.functions[index]);
            next = self.deepest(index)?.callee;
        }
        Ok(Chain(chain))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn function(name: &str, is_program: bool, stack: u64, callees: &[usize]) -> Function {
        Function { name: name.to_owned(), is_program, stack, callees: callees.to_vec() }
    }

    fn found(functions: &[Function]) -> Vec<String> {
        too_deep(functions).expect("a tree of calls").iter().map(ToString::to_string).collect()
    }

    #[test]
    fn a_chain_at_the_limit_passes_and_one_of_a_byte_more_does_not() {
        let with = |leaf| {
            [
                function("program", true, 300, &[1, 2]),
                function("shallow", false, 8, &[]),
                function("middle", false, 130, &[3]),
                function("leaf", false, leaf, &[]),
            ]
        };
        // 320 + 160 + 32.
        assert_eq!(found(&with(32)), Vec::<String>::new());
        assert_eq!(found(&with(33)), ["544 bytes: program (300) -> middle (130) -> leaf (33)"]);
    }

    #[test]
    fn the_error_names_limits_and_chains() {
        let error = judge(&[function("a", true, 513, &[]), function("b", true, 600, &[])]).unwrap_err();
        let error = error.to_string();
        assert!(error.contains("more than 512 bytes"), "{error}");
        assert!(error.ends_with(":\n  544 bytes: a (513)\n  608 bytes: b (600)"), "{error}");
        judge(&[function("a", true, 512, &[])]).expect("at the limit");
    }

    #[test]
    fn one_function_may_be_too_much() {
        assert_eq!(found(&[function("program", true, 512, &[])]), Vec::<String>::new());
        assert_eq!(found(&[function("program", true, 520, &[])]), ["544 bytes: program (520)"]);
    }

    #[test]
    fn what_uses_no_stack_counts_as_well() {
        let functions = [function("program", true, 512, &[1]), function("pure", false, 0, &[])];
        assert_eq!(found(&functions), ["544 bytes: program (512) -> pure (0)"]);
    }

    #[test]
    fn only_what_a_program_calls_counts() {
        let functions = [function("program", true, 512, &[]), function("unused", false, 600, &[])];
        assert_eq!(found(&functions), Vec::<String>::new());
    }

    #[test]
    fn a_program_of_little_stack_may_have_too_many_functions() {
        let chain = |length: usize| -> Vec<Function> {
            let callees = |index| if index + 1 < length { vec![index + 1] } else { Vec::new() };
            (0..length).map(|index| function(&index.to_string(), index == 0, 8, &callees(index))).collect()
        };
        assert_eq!(found(&chain(8)), Vec::<String>::new());
        let nine = found(&chain(9));
        assert!(nine.len() == 1 && nine[0].starts_with("288 bytes: 0 (8) -> 1 (8)"), "{nine:?}");
    }

    #[test]
    fn recursion_is_an_error() {
        let functions = [
            function("program", true, 8, &[1]),
            function("one", false, 8, &[2]),
            function("other", false, 8, &[1]),
        ];
        let error = too_deep(&functions).unwrap_err().to_string();
        assert!(error.starts_with("one is called by itself"), "{error}");
    }

    #[test]
    fn a_shared_function_is_searched_once() {
        // Each calls the next one twice: as many chains as no machine counts.
        let mut functions: Vec<_> =
            (0..64).map(|index| function("f", index == 0, 8, &[index + 1, index + 1])).collect();
        functions.push(function("leaf", false, 8, &[]));
        assert_eq!(found(&functions).len(), 1);
    }
}
