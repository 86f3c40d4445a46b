use super::*;

fn failed(kind: ApiErrorKind) -> LinkEvent {
    LinkEvent::Failed(ApiError::new(kind, "why"))
}

#[test]
fn each_change_of_the_link_is_news_once() {
    use ApiErrorKind::{
        Conflict, Forbidden, NoTurn, NotAnApiserver, Server, TooMany, Unauthorized, Unreachable,
    };
    use LinkEvent::{Answered, Listed};
    // The event, the news, when a valid answer was last possible (0: now it is).
    let events = [
        (failed(Unreachable), Some(LinkNews::Offline), 1),
        (failed(Server), None, 1),
        (failed(TooMany), None, 1),
        (failed(Unauthorized), Some(LinkNews::Refused), 1),
        (failed(NotAnApiserver), None, 1),
        (failed(Unreachable), Some(LinkNews::Offline), 1),
        (Answered, Some(LinkNews::Online), 0),
        (Listed, None, 0),
        (failed(Conflict), None, 0),
        (failed(NoTurn), None, 0),
        (failed(Forbidden), Some(LinkNews::Refused), 11),
        (Answered, None, 11),
        (Listed, Some(LinkNews::Online), 0),
    ];
    let mut state = LinkState::Never;
    for (second, (event, news, lost)) in (1..).zip(events) {
        let (next, told) = transition(state, event.clone(), Timestamp::from_secs(second));
        assert_eq!(told, news, "{event:?}");
        assert_eq!(next.lost_since(), (lost > 0).then(|| Timestamp::from_secs(lost)), "{event:?}");
        assert_eq!(next.is_online(), lost == 0, "{event:?}");
        state = next;
    }
}

#[test]
fn a_refused_link_says_why() {
    let (state, _) = transition(LinkState::Never, failed(ApiErrorKind::Tls), Timestamp::from_secs(1));
    assert_eq!(state.why().map(|why| why.kind), Some(ApiErrorKind::Tls));
    let (state, news) = transition(LinkState::Never, LinkEvent::Answered, Timestamp::from_secs(2));
    assert_eq!((state.why(), news), (None, Some(LinkNews::Online)));
}
