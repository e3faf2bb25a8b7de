//! A Rust file as the house rules see it: its paths, macros, strings and names, each with its line. It is lexed and not
//! parsed, so what stands in a macro's arguments is seen too, and comments are not.

use proc_macro2::{Delimiter, LexError, TokenStream, TokenTree};

/// The contents of a file.
#[derive(Debug, Default)]
pub(super) struct Source {
    /// Paths, those of `use` declarations with their groups resolved.
    pub(super) paths: Vec<Found<Vec<String>>>,
    /// Names of macros that are called.
    pub(super) macros: Vec<Found<String>>,
    /// String literals, escapes as written.
    pub(super) strings: Vec<Found<String>>,
    /// Every identifier.
    pub(super) names: Vec<Found<String>>,
    /// Modules that are test code and in files of their own, as paths below the crate.
    pub(super) test_modules: Vec<Vec<String>>,
}

/// Something in a file.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Found<T> {
    pub(super) what: T,
    pub(super) line: usize,
    /// The module it is in, below the crate.
    pub(super) module: Vec<String>,
    /// Whether it is compiled for tests only.
    pub(super) in_test: bool,
}

impl Source {
    /// Reads the text of a file that is this module of its crate; `in_test` when all of it is test code.
    pub(super) fn read(text: &str, module: &[String], in_test: bool) -> Result<Self, LexError> {
        let tokens: TokenStream = text.parse()?;
        let mut source = Self::default();
        source.walk(tokens, module, in_test);
        Ok(source)
    }

    fn walk(&mut self, tokens: TokenStream, module: &[String], in_test: bool) {
        let tokens: Vec<TokenTree> = tokens.into_iter().collect();
        let mut in_test = in_test;
        // Where the item ends that an attribute declares to be test code.
        let mut test_item = 0;
        let mut at = 0;
        while let Some(token) = tokens.get(at) {
            let position = Position { module, in_test: in_test || at < test_item };
            match token {
                TokenTree::Punct(hash) if hash.as_char() == '#' => {
                    let inner = is_punct(tokens.get(at + 1), '!');
                    let group = tokens.get(at + 1 + usize::from(inner));
                    let Some(TokenTree::Group(group)) = group else {
                        at += 1;
                        continue;
                    };
                    at += 2 + usize::from(inner);
                    if is_test_attribute(group.stream()) {
                        in_test |= inner;
                        test_item = test_item.max(end_of_item(&tokens, at));
                    } else if !is_doc(group.stream()) {
                        self.walk(group.stream(), module, position.in_test);
                    }
                }
                TokenTree::Ident(ident) if ident == "mod" => {
                    at += 1;
                    let Some(TokenTree::Ident(name)) = tokens.get(at) else { continue };
                    let inside = [module, &[name.to_string()]].concat();
                    at += 1;
                    match tokens.get(at) {
                        Some(TokenTree::Group(body)) => {
                            self.walk(body.stream(), &inside, position.in_test);
                            at += 1;
                        }
                        _ if position.in_test => self.test_modules.push(inside),
                        _ => {}
                    }
                }
                // Not the `use<'a>` of a type.
                TokenTree::Ident(ident) if ident == "use" && !is_punct(tokens.get(at + 1), '<') => {
                    let end =
                        at + tokens[at..].iter().take_while(|token| !is_punct(Some(token), ';')).count();
                    self.use_tree(&tokens[at + 1..end], &[], &position);
                    at = end;
                }
                TokenTree::Ident(_) => at += self.path(&tokens[at..], &position),
                TokenTree::Group(group) => {
                    self.walk(group.stream(), module, position.in_test);
                    at += 1;
                }
                TokenTree::Literal(literal) => {
                    if let Some(text) = string(&literal.to_string()) {
                        self.strings.push(position.found(text, literal.span()));
                    }
                    at += 1;
                }
                TokenTree::Punct(_) => at += 1,
            }
        }
    }

    /// Takes the path or the macro's name that `tokens` begin with; returns how many they are.
    fn path(&mut self, tokens: &[TokenTree], position: &Position<'_>) -> usize {
        let mut names = Vec::new();
        let mut at = 0;
        while let Some(TokenTree::Ident(ident)) = tokens.get(at) {
            names.push(ident.to_string());
            self.names.push(position.found(ident.to_string(), ident.span()));
            at += 1;
            if !(is_punct(tokens.get(at), ':') && is_punct(tokens.get(at + 1), ':')) {
                break;
            }
            at += 2;
        }
        let unequal = is_punct(tokens.get(at + 1), '=');
        if let Some(name) = names.last()
            && is_punct(tokens.get(at), '!')
            && !unequal
        {
            self.macros.push(position.found(name.clone(), tokens[0].span()));
        }
        // A lone `self` is a value.
        let path = if names.len() > 1 { position.resolve(names) } else { names };
        self.paths.push(position.found(path, tokens[0].span()));
        at.max(1)
    }

    /// Takes what stands between `use` and its semicolon.
    fn use_tree(&mut self, tokens: &[TokenTree], above: &[String], position: &Position<'_>) {
        let branches = tokens.split(|token| is_punct(Some(token), ','));
        for branch in branches.filter(|branch| !branch.is_empty()) {
            let mut names = above.to_vec();
            let mut at = 0;
            loop {
                match branch.get(at) {
                    Some(TokenTree::Ident(ident)) if ident == "as" => at = branch.len(),
                    Some(TokenTree::Ident(ident)) => {
                        self.names.push(position.found(ident.to_string(), ident.span()));
                        if ident != "self" || names.is_empty() {
                            names.push(ident.to_string());
                        }
                    }
                    Some(TokenTree::Group(group)) if group.delimiter() == Delimiter::Brace => {
                        let inside: Vec<TokenTree> = group.stream().into_iter().collect();
                        self.use_tree(&inside, &names, position);
                        break;
                    }
                    Some(_) => {}
                    None => {
                        let path = position.resolve(names);
                        self.paths.push(position.found(path, branch[0].span()));
                        break;
                    }
                }
                at += 1;
            }
        }
    }
}

/// Where the walk is.
struct Position<'a> {
    module: &'a [String],
    in_test: bool,
}

impl Position<'_> {
    fn found<T>(&self, what: T, span: proc_macro2::Span) -> Found<T> {
        Found { what, line: span.start().line, module: self.module.to_vec(), in_test: self.in_test }
    }

    /// The path from the crate's root on, if it begins with `self` or `super`.
    fn resolve(&self, names: Vec<String>) -> Vec<String> {
        let up = names.iter().take_while(|name| *name == "super").count();
        let from_here = up + usize::from(names.first().is_some_and(|name| name == "self"));
        if from_here == 0 {
            return names;
        }
        let above = &self.module[..self.module.len().saturating_sub(up)];
        let mut path = vec!["crate".to_owned()];
        path.extend(above.iter().cloned());
        path.extend(names.into_iter().skip(from_here));
        path
    }
}

fn is_punct(token: Option<&TokenTree>, wanted: char) -> bool {
    matches!(token, Some(TokenTree::Punct(punct)) if punct.as_char() == wanted)
}

fn is_doc(attribute: TokenStream) -> bool {
    matches!(attribute.into_iter().next(), Some(TokenTree::Ident(name)) if name == "doc")
}

/// `cfg(test)` and `cfg(all(test, …))`.
fn is_test_attribute(attribute: TokenStream) -> bool {
    let text: String = attribute.to_string().split_whitespace().collect();
    text == "cfg(test)" || text.starts_with("cfg(all(test,")
}

/// Index after the item, field or statement that begins at `at`.
fn end_of_item(tokens: &[TokenTree], at: usize) -> usize {
    const ITEMS: [&str; 10] =
        ["const", "enum", "fn", "impl", "mod", "static", "struct", "trait", "type", "use"];
    let mut is_item = false;
    for (index, token) in tokens.iter().enumerate().skip(at) {
        match token {
            TokenTree::Ident(ident) => is_item |= ITEMS.iter().any(|item| ident == item),
            TokenTree::Punct(end) if end.as_char() == ';' => return index + 1,
            TokenTree::Punct(end) if end.as_char() == ',' && !is_item => return index + 1,
            TokenTree::Group(body) if body.delimiter() == Delimiter::Brace => return index + 1,
            _ => {}
        }
    }
    tokens.len()
}

/// What stands between the quotes of a string literal, of whatever kind.
fn string(literal: &str) -> Option<String> {
    let (prefix, _) = literal.split_once('"')?;
    let is_string = prefix.chars().all(|letter| matches!(letter, 'r' | 'b' | 'c' | '#'));
    let end = literal.rfind('"')?;
    is_string.then(|| literal.get(prefix.len() + 1..end).unwrap_or_default().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Source {
        Source::read(text, &["a".to_owned(), "b".to_owned()], false).expect("Rust")
    }

    fn paths(text: &str) -> Vec<String> {
        let multiple = |found: &&Found<Vec<String>>| found.what.len() > 1 && !found.in_test;
        read(text).paths.iter().filter(multiple).map(|found| found.what.join("::")).collect()
    }

    #[test]
    fn a_use_declaration_gives_each_of_its_leaves() {
        assert_eq!(
            paths("use crate::{x::{self, Y as Z}, v::*, w};\npub use super::u::U;"),
            ["crate::x", "crate::x::Y", "crate::v", "crate::w", "crate::a::u::U"]
        );
    }

    #[test]
    fn paths_are_found_in_expressions_types_and_macros() {
        assert_eq!(
            paths("fn f(x: &crate::m::T<std::fs::File>) { format!(\"{}\", super::super::n::g()) }"),
            ["crate::m::T", "std::fs::File", "crate::n::g"]
        );
        assert_eq!(paths("pub(crate) fn f() -> impl Sized + use<'_> { self::g() }"), ["crate::a::b::g"]);
    }

    #[test]
    fn modules_inside_the_file_are_modules_too() {
        assert_eq!(paths("mod c { use super::x::Y; }"), ["crate::a::b::x::Y"]);
    }

    #[test]
    fn test_code_is_told_apart() {
        let text = "#[cfg(test)]\nuse m::{a, b};\nuse m::c;\n#[cfg(test)]\nmod tests { use m::d; }\n\
                    impl T { #[cfg(test)] pub(super) fn f(&self) { m::e() } fn g(&self) { m::f() } }\n\
                    #[cfg(test)] mod sample;\n#[cfg(all(test, x))] mod fake;";
        assert_eq!(paths(text), ["m::c", "m::f"]);
        let modules: Vec<String> = read(text).test_modules.iter().map(|path| path.join("::")).collect();
        assert_eq!(modules, ["a::b::sample", "a::b::fake"]);
    }

    #[test]
    fn strings_have_their_lines_and_comments_are_no_strings() {
        let source =
            read("/// \"doc\"\n// \"comment\"\nconst A: &str = \"/proc\";\nconst B: &CStr = c\"x\";");
        let found: Vec<_> = source.strings.iter().map(|found| (found.what.as_str(), found.line)).collect();
        assert_eq!(found, [("/proc", 3), ("x", 4)]);
    }

    #[test]
    fn a_macro_is_called_by_its_name() {
        let source = read("fn f() { if a != b && !c { std::todo!() } }");
        let names: Vec<_> = source.macros.iter().map(|found| found.what.as_str()).collect();
        assert_eq!(names, ["todo"]);
    }
}
