//! Reads the declarations of `include/distcollective.h` as text. The header has one style
//! throughout, so little code is needed.

/// The header's text.
pub const TEXT: &str = include_str!("../../include/distcollective.h");

/// A function of the header.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Function {
    pub name: String,
    pub returns: String,
    pub parameters: Vec<Parameter>,
    /// The comment directly before it, as one line.
    pub comment: Option<String>,
}

/// A parameter of a function.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Parameter {
    /// With single spaces, and none after a `*`: `const dcl_dims_t *`.
    pub c_type: String,
    pub name: String,
}

/// A declaration, as one line, and the comment directly before it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Declaration {
    pub text: String,
    pub comment: Option<String>,
}

/// All declarations that are not inside others, in the header's order.
pub fn declarations() -> Vec<Declaration> {
    let mut declarations = Vec::new();
    let mut comment: Option<String> = None;
    let mut text = String::new();
    let mut depth = 0i32;
    let mut lines = TEXT.lines();
    while let Some(line) = lines.next() {
        let line = line.trim();
        if line.starts_with("/*") {
            let mut words = vec![line.trim_start_matches("/*")];
            while !words.last().expect("at least one").ends_with("*/") {
                words.push(lines.next().expect("a comment ends").trim().trim_start_matches('*'));
            }
            if depth == 0 {
                let whole = words.join(" ");
                comment = Some(one_line(whole.trim_end_matches("*/")));
            }
        } else if line.starts_with('#') {
            // A directive ends at the first line without a backslash.
            let mut last = line;
            while last.ends_with('\\') {
                last = lines.next().expect("a directive ends").trim();
            }
            comment = None;
        } else if line.is_empty() {
            comment = None;
        } else if !line.starts_with("extern \"C\"") && !line.starts_with("} /* extern") {
            let code = line.split("/*").next().expect("a first part");
            depth += code.matches('{').count() as i32 - code.matches('}').count() as i32;
            text = text + " " + code;
            if depth == 0 && code.trim_end().ends_with(';') {
                declarations.push(Declaration { text: one_line(&text), comment: comment.take() });
                text.clear();
            }
        }
    }
    assert!(text.is_empty() && depth == 0, "the header ends in the middle of a declaration: {text}");
    declarations
}

/// All functions, in the header's order.
pub fn functions() -> Vec<Function> {
    declarations().iter().filter_map(function).collect()
}

fn function(declaration: &Declaration) -> Option<Function> {
    let text = declaration.text.strip_suffix(");")?;
    if text.starts_with("typedef") {
        return None;
    }
    let (head, parameters) = text.split_once('(')?;
    let Parameter { c_type: returns, name } = parameter(head);
    let parameters = match parameters {
        "void" => Vec::new(),
        parameters => parameters.split(',').map(parameter).collect(),
    };
    Some(Function { name, returns, parameters, comment: declaration.comment.clone() })
}

/// Splits a type and a name.
fn parameter(text: &str) -> Parameter {
    let text = text.trim();
    let at = text.rfind(|c: char| !c.is_alphanumeric() && c != '_').expect("a type and a name") + 1;
    Parameter { c_type: text[..at].trim().to_owned(), name: text[at..].to_owned() }
}

fn one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}
