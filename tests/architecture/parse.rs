//! Reads from the text of a Rust file which paths it names.

/// A word or a symbol of the text, and its line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Token {
    pub text: String,
    pub line: usize,
}

/// A path that begins in this crate, from its root: `["comm", "host", "HostBackend"]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reference {
    pub path: Vec<String>,
    pub line: usize,
    /// Whether it stands in a `pub use`, so that others may name it by way of this module.
    pub is_exported: bool,
}

/// Splits a text into words, `::`, and single characters. Comments, strings and characters are left
/// out.
pub fn tokens(text: &str) -> Vec<Token> {
    let chars: Vec<char> = text.chars().collect();
    let at = |i: usize| chars.get(i).copied().unwrap_or('\0');
    let mut tokens = Vec::new();
    let (mut i, mut line) = (0, 1);
    while i < chars.len() {
        let start = i;
        match chars[i] {
            '/' if at(i + 1) == '/' => i += chars[i..].iter().take_while(|c| **c != '\n').count(),
            '/' if at(i + 1) == '*' => i = end_of_comment(&chars, i),
            '"' => i = end_of_string(&chars, i),
            'r' if at(i + 1) == '"' || (at(i + 1) == '#' && matches!(at(i + 2), '"' | '#')) => {
                i = end_of_raw(&chars, i + 1)
            }
            // A character, and not a lifetime.
            '\'' if at(i + 1) == '\\' => i += 3 + chars[i + 3..].iter().take_while(|c| **c != '\'').count() + 1,
            '\'' if at(i + 2) == '\'' => i += 3,
            c if c.is_alphanumeric() || c == '_' => {
                i += chars[i..].iter().take_while(|c| c.is_alphanumeric() || **c == '_').count();
                tokens.push(Token { text: chars[start..i].iter().collect(), line });
            }
            ':' if at(i + 1) == ':' => {
                i += 2;
                tokens.push(Token { text: "::".to_owned(), line });
            }
            c => {
                i += 1;
                if !c.is_whitespace() {
                    tokens.push(Token { text: c.to_string(), line });
                }
            }
        }
        line += chars[start..i.min(chars.len())].iter().filter(|c| **c == '\n').count();
    }
    tokens
}

fn end_of_comment(chars: &[char], start: usize) -> usize {
    let (mut i, mut depth) = (start + 2, 1);
    while depth > 0 && i < chars.len() {
        match &chars[i..chars.len().min(i + 2)] {
            ['/', '*'] => (i, depth) = (i + 2, depth + 1),
            ['*', '/'] => (i, depth) = (i + 2, depth - 1),
            _ => i += 1,
        }
    }
    i
}

fn end_of_string(chars: &[char], start: usize) -> usize {
    let mut i = start + 1;
    while i < chars.len() && chars[i] != '"' {
        i += if chars[i] == '\\' { 2 } else { 1 };
    }
    i + 1
}

/// The end of a raw string, whose hash signs begin at `start`.
fn end_of_raw(chars: &[char], start: usize) -> usize {
    let hashes = chars[start..].iter().take_while(|c| **c == '#').count();
    let mut i = start + hashes + 1;
    while i < chars.len() && !(chars[i] == '"' && chars[i + 1..].iter().take_while(|c| **c == '#').count() >= hashes) {
        i += 1;
    }
    i + 1 + hashes
}

/// The references in the text of the module at `module`.
pub fn references(text: &str, module: &[String]) -> Vec<Reference> {
    let tokens = tokens(text);
    let is = |i: usize, text: &str| tokens.get(i).is_some_and(|token| token.text == text);
    let child = |i: usize| tokens.get(i).filter(|_| i > 0 && is(i - 1, "mod") && is(i + 1, ";"));
    let children: Vec<&str> = (0..tokens.len()).filter_map(child).map(|token| token.text.as_str()).collect();
    let mut found = Vec::new();
    // Modules that stand in this file, with the depth of braces in which they began.
    let mut inner: Vec<(usize, String)> = Vec::new();
    let (mut depth, mut is_exported, mut i) = (0, false, 0);
    while i < tokens.len() {
        let token = tokens[i].text.as_str();
        match token {
            "mod" if is(i + 2, "{") => inner.push((depth, tokens[i + 1].text.clone())),
            "{" => depth += 1,
            "}" => {
                depth -= 1;
                inner.pop_if(|(began, _)| *began == depth);
            }
            "use" => is_exported = i > 0 && (is(i - 1, "pub") || is(i - 1, ")")),
            ";" => is_exported = false,
            _ => {}
        }
        let begins = is(i + 1, "::") && (i == 0 || !is(i - 1, "::"));
        let mut here = module.to_vec();
        here.extend(inner.iter().map(|(_, name)| name.clone()));
        let prefix = match token {
            "crate" if begins => Some(Vec::new()),
            "self" if begins => Some(here),
            "super" if begins => {
                here.pop();
                Some(here)
            }
            name if begins && inner.is_empty() && children.contains(&name) => {
                here.push(name.to_owned());
                Some(here)
            }
            _ => None,
        };
        i += 1;
        if let Some(prefix) = prefix {
            i = tree(&tokens, i + 1, prefix, &mut |path, line| found.push(Reference { path, line, is_exported }));
        }
    }
    found
}

/// Reads a path, or a tree of paths, that goes on at token `i`, after a `::`. Gives the first token
/// behind it.
fn tree(tokens: &[Token], mut i: usize, mut path: Vec<String>, found: &mut impl FnMut(Vec<String>, usize)) -> usize {
    let text = |i: usize| tokens.get(i).map_or("", |token| token.text.as_str());
    loop {
        let line = tokens.get(i).map_or(0, |token| token.line);
        match text(i) {
            "{" => {
                i += 1;
                while i < tokens.len() && text(i) != "}" {
                    i = match text(i) {
                        "," => i + 1,
                        _ => branch(tokens, i, &path, found),
                    };
                }
                return i + 1;
            }
            "super" => drop(path.pop()),
            "self" => {}
            // A glob, and the arguments of a generic function, end the path.
            "*" | "<" => {
                found(path, line);
                return i + 1;
            }
            name => path.push(name.to_owned()),
        }
        i += 1;
        if text(i) != "::" {
            found(path, line);
            return i;
        }
        i += 1;
    }
}

/// Reads one branch of a tree, and the name that it gets.
fn branch(tokens: &[Token], i: usize, path: &[String], found: &mut impl FnMut(Vec<String>, usize)) -> usize {
    let end = tree(tokens, i, path.to_vec(), found);
    if tokens.get(end).is_some_and(|token| token.text == "as") { end + 2 } else { end }
}

#[test]
fn references_are_found_in_trees_expressions_and_inner_modules() {
    let text = r##"
        //! crate::comment::no
        mod child;
        pub(crate) use child::{A, deep::{self, B as C}};
        use super::{sibling, super::uncle::D};
        /* crate::comment::no /* and */ none */
        fn f<'a>(x: &'a str) -> crate::E {
            let text = "crate::string::no \" crate::no"; let c = '"'; let d = '\'';
            let raw = r#"crate::raw::no"#;
            crate::g::<u8>(x); child::h(); other::child::no()
        }
        mod tests { use super::*; use super::super::sibling::I; fn f() { child::no() } }
        use self::child::J;
    "##;
    let module = ["a".to_owned(), "b".to_owned()];
    let found: Vec<(String, bool)> =
        references(text, &module).into_iter().map(|r| (r.path.join("::"), r.is_exported)).collect();
    let expected = [
        ("a::b::child::A", true),
        ("a::b::child::deep", true),
        ("a::b::child::deep::B", true),
        ("a::sibling", false),
        ("uncle::D", false),
        ("E", false),
        ("g", false),
        ("a::b::child::h", false),
        ("a::b", false),
        ("a::sibling::I", false),
        ("a::b::child::J", false),
    ];
    assert_eq!(found, expected.map(|(path, is_exported)| (path.to_owned(), is_exported)));
}

#[test]
fn references_know_their_lines() {
    let text = "// 1\nuse crate::{\n    a::A,\n    b::B,\n};\nlet s = \"\n\n\"; crate::c();\n";
    let lines: Vec<usize> = references(text, &[]).iter().map(|reference| reference.line).collect();
    assert_eq!(lines, [3, 4, 8]);
}
