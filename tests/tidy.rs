//! The repository's rules, as tests: which module may know which, where external crates live, and what a file must say.

mod arrows;
mod crates;
mod documents;
mod files;
mod lexer;
mod names;
mod phrases;
mod table;
mod tree;
mod visibility;
