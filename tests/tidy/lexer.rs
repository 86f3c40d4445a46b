//! Just enough of Rust's grammar to see paths: comments, literals and test-only items are taken out first.

/// A word, `::`, or any other single character that is not white space.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Token {
    /// An identifier or keyword.
    Word(String),
    /// `::`.
    Colons,
    /// Anything else.
    Other(char),
}

impl Token {
    /// The word, if it is one.
    pub fn word(&self) -> Option<&str> {
        match self {
            Self::Word(word) => Some(word),
            _ => None,
        }
    }

    fn is(&self, character: char) -> bool {
        *self == Self::Other(character)
    }
}

/// The tokens of a program text, without comments and literals.
pub fn tokens(text: &str) -> Vec<Token> {
    let mut rest = Rest(text);
    let mut tokens = Vec::new();
    while let Some(character) = rest.peek() {
        if rest.skip_comment() || rest.skip_literal() {
            continue;
        }
        if is_word(character) {
            tokens.push(Token::Word(rest.take_word()));
        } else if rest.skip_prefix("::") {
            tokens.push(Token::Colons);
        } else {
            if !character.is_whitespace() {
                tokens.push(Token::Other(character));
            }
            rest.advance(character.len_utf8());
        }
    }
    tokens
}

/// The string literals of a program text, as they are written: with their quotes, escapes and continued lines.
pub fn strings(text: &str) -> Vec<&str> {
    let mut rest = Rest(text);
    let mut found = Vec::new();
    while let Some(character) = rest.peek() {
        let before = rest.0;
        if rest.skip_comment() {
            continue;
        }
        if rest.skip_literal() {
            let literal = &before[..before.len() - rest.0.len()];
            if literal.ends_with(['"', '#']) {
                found.push(literal);
            }
        } else if is_word(character) {
            rest.take_word();
        } else {
            rest.advance(character.len_utf8());
        }
    }
    found
}

/// Takes out every item under `#[cfg(test)]`, and returns the names of such modules that live in a file of their own.
pub fn without_tests(tokens: &[Token]) -> (Vec<Token>, Vec<String>) {
    let attribute = crate::tidy::lexer::tokens("#[cfg(test)]");
    let mut kept = Vec::new();
    let mut test_modules = Vec::new();
    let mut position = 0;
    while position < tokens.len() {
        if tokens[position..].starts_with(&attribute) {
            let end = end_of_item(tokens, position + attribute.len());
            let item = &tokens[position..end];
            if item.last().is_some_and(|token| token.is(';'))
                && let Some(name) = item.iter().skip_while(|token| token.word() != Some("mod")).nth(1)
            {
                test_modules.extend(name.word().map(str::to_owned));
            }
            position = end;
        } else {
            kept.push(tokens[position].clone());
            position += 1;
        }
    }
    (kept, test_modules)
}

/// Every path of two or more segments, use trees spread out: `use a::{b, c::d}` gives `a::b` and `a::c::d`.
pub fn paths(tokens: &[Token]) -> Vec<Vec<String>> {
    let mut found = Vec::new();
    let mut position = 0;
    while position < tokens.len() {
        if tokens[position].word().is_some() {
            position = path(tokens, position, &[], &mut found);
        } else {
            position += 1;
        }
    }
    found.retain(|path| path.len() > 1);
    found
}

/// Reads one path from `position` on, below `prefix`; returns the position after it.
fn path(tokens: &[Token], mut position: usize, prefix: &[String], found: &mut Vec<Vec<String>>) -> usize {
    let mut segments = prefix.to_vec();
    while let Some(word) = tokens.get(position).and_then(Token::word) {
        segments.push(word.to_owned());
        position += 1;
        if tokens.get(position) != Some(&Token::Colons) {
            break;
        }
        position += 1;
        if tokens.get(position).is_some_and(|token| token.is('{')) {
            position += 1;
            while let Some(token) = tokens.get(position) {
                position = match token.word() {
                    _ if token.is('}') => return position + 1,
                    // A new name is no path.
                    Some("as") => position + 2,
                    Some(_) => path(tokens, position, &segments, found),
                    None => position + 1,
                };
            }
            return position;
        }
    }
    found.push(segments);
    position
}

/// The position after the item that starts at `position`: after its closing brace or its semicolon.
fn end_of_item(tokens: &[Token], mut position: usize) -> usize {
    let mut depth = 0_usize;
    while let Some(token) = tokens.get(position) {
        position += 1;
        match token {
            Token::Other('{' | '(' | '[') => depth += 1,
            Token::Other(closing @ ('}' | ')' | ']')) => {
                depth = depth.saturating_sub(1);
                if depth == 0 && *closing == '}' {
                    break;
                }
            }
            Token::Other(';' | ',') if depth == 0 => break,
            _ => {}
        }
    }
    position
}

fn is_word(character: char) -> bool {
    character.is_alphanumeric() || character == '_'
}

/// What has not been read yet.
struct Rest<'text>(&'text str);

impl Rest<'_> {
    fn peek(&self) -> Option<char> {
        self.0.chars().next()
    }

    fn advance(&mut self, bytes: usize) {
        self.0 = &self.0[bytes..];
    }

    fn skip_prefix(&mut self, prefix: &str) -> bool {
        let found = self.0.starts_with(prefix);
        if found {
            self.advance(prefix.len());
        }
        found
    }

    /// Up to and with `end`, or everything.
    fn skip_past(&mut self, end: &str) {
        let bytes = self.0.find(end).map_or(self.0.len(), |start| start + end.len());
        self.advance(bytes);
    }

    fn take_word(&mut self) -> String {
        let bytes = self.0.find(|character| !is_word(character)).unwrap_or(self.0.len());
        let word = self.0[..bytes].to_owned();
        self.advance(bytes);
        word
    }

    fn skip_comment(&mut self) -> bool {
        if self.0.starts_with("//") {
            self.skip_past("\n");
            return true;
        }
        if !self.skip_prefix("/*") {
            return false;
        }
        let mut depth = 1;
        while depth > 0 {
            if self.skip_prefix("/*") {
                depth += 1;
            } else if self.skip_prefix("*/") {
                depth -= 1;
            } else if let Some(character) = self.peek() {
                self.advance(character.len_utf8());
            } else {
                break;
            }
        }
        true
    }

    fn skip_literal(&mut self) -> bool {
        for prefix in ["br", "cr", "r"] {
            if let Some(after) = self.0.strip_prefix(prefix) {
                let hashes = after.len() - after.trim_start_matches('#').len();
                if after[hashes..].starts_with('"') {
                    self.advance(prefix.len() + hashes + 1);
                    self.skip_past(&format!("\"{}", "#".repeat(hashes)));
                    return true;
                }
            }
        }
        for prefix in ["b\"", "c\"", "\""] {
            if self.skip_prefix(prefix) {
                self.skip_escaped('"');
                return true;
            }
        }
        // A quote starts a character only if one follows that is escaped or closed at once; else it is a lifetime.
        let mut after =
            self.0.strip_prefix("b'").or_else(|| self.0.strip_prefix('\'')).unwrap_or_default().chars();
        let is_character =
            matches!((after.next(), after.next()), (Some('\\'), Some(_)) | (Some(_), Some('\'')));
        if is_character {
            self.skip_past("'");
            self.skip_escaped('\'');
        }
        is_character
    }

    /// Past the closing quote of a literal whose opening one has been read.
    fn skip_escaped(&mut self, quote: char) {
        while let Some(character) = self.peek() {
            self.advance(character.len_utf8());
            if character == '\\' {
                if let Some(escaped) = self.peek() {
                    self.advance(escaped.len_utf8());
                }
            } else if character == quote {
                break;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{paths, strings, tokens, without_tests};

    fn printed(text: &str) -> Vec<String> {
        paths(&tokens(text)).iter().map(|path| path.join("::")).collect()
    }

    #[test]
    fn use_trees_are_spread_out_and_paths_in_code_are_seen() {
        assert_eq!(
            printed(
                "use crate::{types::{A, B as C}, api::pod::*, x::self}; fn f() -> std::io::Result<()> { log::info!(\"\") }"
            ),
            [
                "crate::types::A",
                "crate::types::B",
                "crate::api::pod",
                "crate::x::self",
                "std::io::Result",
                "log::info"
            ]
        );
    }

    #[test]
    fn comments_strings_and_char_literals_yield_no_paths() {
        let text = r##"
            /* outer /* a::b */ c::d */ // e::f
            fn f<'a>(x: &'a str) { g("h::i \" j::k", r#"l::m " n::o"#, 'p', '\'', b'"', '"'); q::r }
        "##;
        assert_eq!(printed(text), ["q::r"]);
    }

    #[test]
    fn string_literals_are_found_without_comments_and_characters() {
        let text = r##"/* "a" */ f("b \" c", 'd', '"', r#"e "f" g"#); // "h"
            fn g<'i>(j: &'i str) { k("l \
                m") }"##;
        assert_eq!(strings(text), [r#""b \" c""#, "r#\"e \"f\" g\"#", "\"l \\\n                m\""]);
    }

    #[test]
    fn test_only_items_are_left_out_and_their_files_are_named() {
        let text =
            "use a::b; #[cfg(test)] mod tests { use c::d; fn f() { { } } } #[cfg(test)] mod far; use e::f;
            #[cfg(test)] #[allow(x)] use g::h; #[cfg(test)] fn t() { i::j } use k::l;";
        let (kept, files) = without_tests(&tokens(text));
        let left: Vec<String> = paths(&kept).iter().map(|path| path.join("::")).collect();
        assert_eq!(left, ["a::b", "e::f", "k::l"]);
        assert_eq!(files, ["far"]);
    }
}
