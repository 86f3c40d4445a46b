//! Profile files: the OCI specification's form, and Docker's with its conditions.

use serde_json::{Map, Value, json};

use super::{Action, Arch, Condition, EPERM, Operator, Profile, Rule, SeccompError};

/// The container and node that a profile's conditions are checked against.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Subject<'a> {
    /// `CAP_…` of the container.
    pub capabilities: &'a [String],
    /// Major and minor version of the kernel.
    pub kernel: (u32, u32),
    pub arch: Arch,
}

/// No real profile has more: a longer one would only use up memory.
const MAX_RULES: usize = 4096;
/// The largest error number that the kernel returns.
const MAX_ERRNO: u64 = 4095;

const ACTIONS: [(&str, Action); 8] = [
    ("SCMP_ACT_KILL", Action::KillThread),
    ("SCMP_ACT_KILL_THREAD", Action::KillThread),
    ("SCMP_ACT_KILL_PROCESS", Action::KillProcess),
    ("SCMP_ACT_TRAP", Action::Trap),
    ("SCMP_ACT_ERRNO", Action::Errno(EPERM)),
    ("SCMP_ACT_TRACE", Action::Trace(EPERM)),
    ("SCMP_ACT_ALLOW", Action::Allow),
    ("SCMP_ACT_LOG", Action::Log),
];

const OPERATORS: [(&str, Operator); 7] = [
    ("SCMP_CMP_NE", Operator::NotEqual),
    ("SCMP_CMP_LT", Operator::Less),
    ("SCMP_CMP_LE", Operator::LessEqual),
    ("SCMP_CMP_EQ", Operator::Equal),
    ("SCMP_CMP_GE", Operator::GreaterEqual),
    ("SCMP_CMP_GT", Operator::Greater),
    ("SCMP_CMP_MASKED_EQ", Operator::MaskedEqual),
];

/// A place in a file, for errors.
#[derive(Clone)]
struct At<'a> {
    file: &'a str,
    field: String,
    value: &'a Value,
}

impl<'a> At<'a> {
    fn fail<T>(&self, why: impl Into<String>) -> Result<T, SeccompError> {
        let field = if self.field.is_empty() { "document" } else { &self.field };
        Err(SeccompError::Field { file: self.file.to_owned(), field: field.to_owned(), why: why.into() })
    }

    /// A member, when it is there and not null.
    fn get(&self, name: &str) -> Result<Option<At<'a>>, SeccompError> {
        let Value::Object(members) = self.value else { return self.fail("must be an object") };
        let dot = if self.field.is_empty() { "" } else { "." };
        Ok(members.get(name).filter(|value| !value.is_null()).map(|value| At {
            file: self.file,
            field: format!("{}{dot}{name}", self.field),
            value,
        }))
    }

    fn need(&self, name: &str) -> Result<At<'a>, SeccompError> {
        match self.get(name)? {
            Some(at) => Ok(at),
            None => self.fail(format!("{name} is missing")),
        }
    }

    /// Elements of a member; none when it is absent.
    fn list(&self, name: &str) -> Result<Vec<At<'a>>, SeccompError> {
        let Some(at) = self.get(name)? else { return Ok(Vec::new()) };
        let Value::Array(items) = at.value else { return at.fail("must be a list") };
        if items.len() > MAX_RULES {
            return at.fail(format!("has more than {MAX_RULES} entries"));
        }
        let item = |(index, value): (usize, &'a Value)| At {
            file: self.file,
            field: format!("{}[{index}]", at.field),
            value,
        };
        Ok(items.iter().enumerate().map(item).collect())
    }

    fn text(&self) -> Result<&'a str, SeccompError> {
        match self.value.as_str() {
            Some(text) => Ok(text),
            None => self.fail("must be a string"),
        }
    }

    fn number(&self) -> Result<u64, SeccompError> {
        match self.value.as_u64() {
            Some(number) => Ok(number),
            None => self.fail("must be an unsigned number"),
        }
    }

    fn texts(&self, name: &str) -> Result<Vec<String>, SeccompError> {
        self.list(name)?.iter().map(|at| at.text().map(str::to_owned)).collect()
    }
}

/// Reads a profile from a file's JSON; rules that do not apply to the subject are left out.
pub(crate) fn parse_profile(
    file: &str,
    value: &Value,
    subject: &Subject<'_>,
) -> Result<Profile, SeccompError> {
    let top = At { file, field: String::new(), value };
    let errno = errno(&top, "defaultErrnoRet")?;
    let default_action = action(&top.need("defaultAction")?, errno)?;
    let mut architectures = Vec::new();
    for at in top.list("architectures")? {
        architectures.push(architecture(&at)?.to_owned());
    }
    for at in top.list("archMap")? {
        // Docker's form: the architectures that belong to the native one.
        let own = at.need("architecture")?;
        if subject.arch.abis().next().is_some_and(|abi| own.value.as_str() == Some(abi.name())) {
            architectures.push(architecture(&own)?.to_owned());
            for sub in at.list("subArchitectures")? {
                architectures.push(architecture(&sub)?.to_owned());
            }
        }
    }
    let mut rules = Vec::new();
    for at in top.list("syscalls")? {
        if concerns(&at, subject)? {
            rules.push(rule(&at)?);
        }
    }
    if let Some(at) = top.get("listenerPath")?.filter(|at| at.value.as_str() != Some("")) {
        return at.fail("user notification is not supported");
    }
    Ok(Profile { default_action, architectures, flags: top.texts("flags")?, rules })
}

fn architecture<'a>(at: &At<'a>) -> Result<&'a str, SeccompError> {
    match at.text()? {
        name if name.starts_with("SCMP_ARCH_") => Ok(name),
        name => at.fail(format!("unknown architecture {name:?}, expected SCMP_ARCH_…")),
    }
}

fn errno(at: &At<'_>, name: &str) -> Result<Option<u16>, SeccompError> {
    let Some(at) = at.get(name)? else { return Ok(None) };
    match at.number()? {
        number if number <= MAX_ERRNO => Ok(u16::try_from(number).ok()),
        number => at.fail(format!("invalid errno {number}, the largest is {MAX_ERRNO}")),
    }
}

fn action(at: &At<'_>, errno: Option<u16>) -> Result<Action, SeccompError> {
    let name = at.text()?;
    if name == "SCMP_ACT_NOTIFY" {
        return at.fail("user notification is not supported");
    }
    let Some((_, action)) = ACTIONS.iter().find(|(known, _)| *known == name) else {
        return at.fail(format!("unknown action {name:?}"));
    };
    Ok(match action {
        Action::Errno(usual) => Action::Errno(errno.unwrap_or(*usual)),
        Action::Trace(usual) => Action::Trace(errno.unwrap_or(*usual)),
        other => *other,
    })
}

fn rule(at: &At<'_>) -> Result<Rule, SeccompError> {
    let mut names = at.texts("names")?;
    // The form before Docker 1.13.
    if let Some(name) = at.get("name")? {
        names.push(name.text()?.to_owned());
    }
    if names.is_empty() {
        return at.fail("names is missing or empty");
    }
    let errno = errno(at, "errnoRet")?;
    let action = action(&at.need("action")?, errno)?;
    let args = at.list("args")?.iter().map(condition).collect::<Result<_, _>>()?;
    Ok(Rule { names, action, args })
}

fn condition(at: &At<'_>) -> Result<Condition, SeccompError> {
    let index = at.need("index")?;
    let Some(number) = u8::try_from(index.number()?).ok().filter(|index| *index < 6) else {
        return index.fail("argument index must be between 0 and 5");
    };
    let op = at.need("op")?;
    let name = op.text()?;
    let Some((_, operator)) = OPERATORS.iter().find(|(known, _)| *known == name) else {
        return op.fail(format!("unknown operator {name:?}"));
    };
    let value_two = at.get("valueTwo")?.map_or(Ok(0), |at| at.number())?;
    Ok(Condition { index: number, value: at.need("value")?.number()?, value_two, operator: *operator })
}

/// Docker's conditions: all of `includes`, none of `excludes`.
fn concerns(at: &At<'_>, subject: &Subject<'_>) -> Result<bool, SeccompError> {
    let has = |name: &String| subject.capabilities.contains(name);
    if let Some(includes) = at.get("includes")? {
        let arches = includes.texts("arches")?;
        if !arches.is_empty() && !arches.iter().any(|name| subject.arch.is_named(name)) {
            return Ok(false);
        }
        if !includes.texts("caps")?.iter().all(has) || !is_new_enough(&includes, subject)?.unwrap_or(true) {
            return Ok(false);
        }
    }
    if let Some(excludes) = at.get("excludes")? {
        let is_arch = excludes.texts("arches")?.iter().any(|name| subject.arch.is_named(name));
        let has_any = excludes.texts("caps")?.iter().any(has);
        if is_arch || has_any || is_new_enough(&excludes, subject)?.unwrap_or(false) {
            return Ok(false);
        }
    }
    Ok(true)
}

/// `minKernel`; `None` when it is not asked for.
fn is_new_enough(at: &At<'_>, subject: &Subject<'_>) -> Result<Option<bool>, SeccompError> {
    let Some(at) = at.get("minKernel")? else { return Ok(None) };
    let version = at.text()?.split_once('.');
    match version.and_then(|(major, minor)| Some((major.parse().ok()?, minor.parse().ok()?))) {
        Some(wanted) => Ok(Some(subject.kernel >= wanted)),
        None => at.fail("must be a kernel version such as \"4.8\""),
    }
}

/// The specification's form, for external runtimes.
#[must_use]
pub(crate) fn to_oci(profile: &Profile) -> Value {
    let rule = |rule: &Rule| {
        let mut object = with_action("action", "errnoRet", rule.action);
        object.insert("names".to_owned(), json!(rule.names));
        if !rule.args.is_empty() {
            object.insert("args".to_owned(), rule.args.iter().map(argument).collect());
        }
        Value::Object(object)
    };
    let mut top = with_action("defaultAction", "defaultErrnoRet", profile.default_action);
    for (name, texts) in [("architectures", &profile.architectures), ("flags", &profile.flags)] {
        if !texts.is_empty() {
            top.insert(name.to_owned(), json!(texts));
        }
    }
    top.insert("syscalls".to_owned(), profile.rules.iter().map(rule).collect());
    Value::Object(top)
}

fn argument(condition: &Condition) -> Value {
    let op = OPERATORS.iter().find(|(_, operator)| *operator == condition.operator).map(|(name, _)| *name);
    json!({
        "index": condition.index,
        "value": condition.value,
        "valueTwo": condition.value_two,
        "op": op,
    })
}

fn with_action(name: &str, errno_name: &str, action: Action) -> Map<String, Value> {
    let (text, number) = match action {
        Action::KillProcess => ("SCMP_ACT_KILL_PROCESS", None),
        Action::KillThread => ("SCMP_ACT_KILL_THREAD", None),
        Action::Trap => ("SCMP_ACT_TRAP", None),
        Action::Errno(number) => ("SCMP_ACT_ERRNO", Some(number)),
        Action::Trace(number) => ("SCMP_ACT_TRACE", Some(number)),
        Action::Log => ("SCMP_ACT_LOG", None),
        Action::Allow => ("SCMP_ACT_ALLOW", None),
    };
    let mut object = Map::new();
    object.insert(name.to_owned(), json!(text));
    if let Some(number) = number {
        object.insert(errno_name.to_owned(), json!(number));
    }
    object
}
