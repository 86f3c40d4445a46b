use super::*;
use crate::cluster::fake::FakeApiserver;
use crate::platform::clock::Clock;

const NOW: Timestamp = Timestamp::from_secs(1_795_305_600);

fn options(line: &str) -> CommandWords {
    CommandWords::parse(&words(line), &OPTIONS).unwrap()
}

fn words(line: &str) -> Vec<String> {
    line.split_whitespace().map(str::to_owned).collect()
}

#[test]
fn a_new_token_is_checked_before_the_server_is_asked() {
    let made = |line: &str, token: Option<&str>| new(&options(line), token.map(str::to_owned).as_ref(), NOW);
    let said = |line: &str, token| made(line, token).err().unwrap().to_string();
    let record = made("create", None).ok().unwrap();
    assert_eq!(record.expires, Some(NOW.saturating_add(Duration::from_secs(86_400))));
    assert_eq!(record.groups, [record::GROUP]);
    assert_eq!(made("create --ttl 0", Some("abcdef.0123456789abcdef")).ok().unwrap().expires, None);
    assert!(said("create --usages signing", None).contains("token groups cannot be specified"));
    assert!(said("create --certificate-key ab", None).contains("--print-join-command"));
    assert!(said("create", Some("foo")).contains("not of the form"));
    assert!(said("create --ttl soon", None).contains("--ttl \"soon\""));
}

#[test]
fn an_option_of_another_subcommand_is_refused() {
    for (line, named) in [
        ("", "subcommand is required"),
        ("list --ttl 1h", "invalid option '--ttl' for \"list\""),
        ("create -o json", "invalid option '--output' for \"create\""),
        ("generate --groups a", "invalid option '--groups'"),
        ("delete abcdef --print-join-command", "invalid option '--print-join-command'"),
        ("list -o wide", "wide"),
    ] {
        let (mut out, mut err) = (Vec::new(), Vec::new());
        let environment =
            Environment { out: &mut out, err: &mut err, terminal: false, colour: false, now: NOW };
        let why = command(&mut InitSession { environment }, &options(line)).unwrap_err().to_string();
        assert!(why.contains(named), "{line}: {why}");
    }
}

#[tokio::test(start_paused = true)]
async fn tokens_are_created_once_listed_and_deleted() {
    let server = FakeApiserver::new(Clock::manual(NOW), 1);
    let said = RefCell::new(String::new());
    let say = |text: &str| said.borrow_mut().push_str(text);
    let api = Api::new(Some(api::client(server.transport("admin"))), &say, Instant::now() + LIMIT);
    let record = split("abcdef.0123456789abcdef");
    create(&api, &record).await.unwrap();
    let why = create(&api, &record).await.unwrap_err().to_string();
    assert_eq!(why, "a token with id \"abcdef\" already exists");
    show(&api, Output::Text, NOW).await.unwrap();
    let text = said.take();
    assert_eq!(text.lines().count(), 2, "{text}");
    assert!(text.contains("abcdef.0123456789abcdef   <forever>"), "{text}");
    for form in [Output::Json, Output::Yaml] {
        show(&api, form, NOW).await.unwrap();
        assert!(said.take().contains("BootstrapToken"));
    }
    delete(&api, &words("abcdef")).await.unwrap();
    assert_eq!(said.take(), "bootstrap token \"abcdef\" deleted\n");
    let why = delete(&api, &words("abcdef.0123456789abcdef")).await.unwrap_err().to_string();
    assert!(why.contains("secrets \"bootstrap-token-abcdef\" not found"), "{why}");
    assert!(delete(&api, &words("xx")).await.is_err());
}
