//! The library's modules: which files, which names, which code outside tests.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use super::lexer::{Token, paths, tokens, without_tests};
use super::table::PURE_LINE;

/// A module's code outside tests.
#[derive(Clone, Debug)]
pub struct Module {
    /// From the repository's root.
    pub file: String,
    /// Without test-only items.
    pub tokens: Vec<Token>,
    /// Its documentation says so.
    pub is_pure: bool,
}

/// Modules by their path below the crate, `runtime::cri`; `main` is the program, the crate's root is left out.
pub type Modules = BTreeMap<String, Module>;

/// The repository's root.
pub fn repository() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Every file below `directory` that a person wrote: build results and version control are left out.
pub fn files(directory: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(directory).expect("read a directory of the repository").flatten() {
        let path = entry.path();
        let name = entry.file_name();
        if name == "target" || name == ".git" {
            continue;
        }
        if path.is_dir() {
            found.extend(files(&path));
        } else {
            found.push(path);
        }
    }
    found.sort();
    found
}

/// A file's name from the repository's root.
pub fn relative(path: &Path) -> String {
    path.strip_prefix(repository()).unwrap_or(path).to_string_lossy().into_owned()
}

/// True for a module and what is below it.
pub fn is_within(name: &str, home: &str) -> bool {
    name.strip_prefix(home).is_some_and(|rest| rest.is_empty() || rest.starts_with("::"))
}

/// Reads the library.
pub fn modules() -> Modules {
    let source = repository().join("src");
    let texts = files(&source)
        .into_iter()
        .filter(|path| path.extension().is_some_and(|ext| ext == "rs"))
        .map(|path| {
            let text = fs::read_to_string(&path).expect("read a source file");
            (relative(&path), text)
        });
    parse(texts)
}

/// Makes modules of files given as `src/...` and text; files that only tests use are left out.
pub fn parse(texts: impl IntoIterator<Item = (String, String)>) -> Modules {
    let mut modules = Modules::new();
    let mut test_only = BTreeSet::new();
    for (file, text) in texts {
        let name = file.trim_start_matches("src/").trim_end_matches(".rs").replace('/', "::");
        let (tokens, test_modules) = without_tests(&tokens(&text));
        test_only.extend(test_modules.iter().map(|child| format!("{name}::{child}")));
        let is_pure = text.lines().any(|line| line.starts_with(PURE_LINE));
        modules.insert(name, Module { file, tokens, is_pure });
    }
    modules.retain(|name, _| {
        name != "lib" && !test_only.iter().any(|test| name == test || name.starts_with(&format!("{test}::")))
    });
    modules
}

/// Modules that `name` mentions, each with one path that shows it.
pub fn imports(modules: &Modules, name: &str) -> BTreeMap<String, String> {
    let mut found = BTreeMap::new();
    for path in paths(&modules[name].tokens) {
        let shown = path.join("::");
        if let Some(absolute) = resolve(modules, name, &path)
            && let Some(target) = deepest(modules, &absolute)
            && target != name
        {
            found.entry(target).or_insert(shown);
        }
    }
    found
}

/// A path from the crate's root, or `None` when it does not lead into the crate.
fn resolve(modules: &Modules, name: &str, path: &[String]) -> Option<Vec<String>> {
    let here: Vec<String> =
        if name == "main" { Vec::new() } else { name.split("::").map(str::to_owned).collect() };
    let first = path.first()?.as_str();
    match first {
        "crate" | "edge_agent" => Some(path[1..].to_vec()),
        "self" => Some([&here, &path[1..]].concat()),
        "super" => {
            let ups = path.iter().take_while(|segment| *segment == "super").count();
            Some([&here[..here.len().saturating_sub(ups)], &path[ups..]].concat())
        }
        _ if modules.contains_key(&format!("{name}::{first}")) => Some([&here, path].concat()),
        _ => None,
    }
}

/// The longest start of a path that is a module.
fn deepest(modules: &Modules, path: &[String]) -> Option<String> {
    (1..=path.len()).rev().map(|length| path[..length].join("::")).find(|name| modules.contains_key(name))
}
