//! Messages are decoded whatever the chunk boundaries, and memory stays bounded.

use proptest::prelude::*;

use super::*;

/// A masked frame, as clients send it.
fn masked(kind: u8, fin: bool, bytes: &[u8], mask: [u8; 4]) -> Vec<u8> {
    let mut frame = encode(kind, &[], bytes);
    let header = frame.len() - bytes.len();
    frame[0] = kind | (u8::from(fin) * FIN);
    frame[1] |= 0x80;
    for (index, byte) in frame[header..].iter_mut().enumerate() {
        *byte ^= mask[index % 4];
    }
    frame.splice(header..header, mask);
    frame
}

/// Messages, joined from their pieces, and pings.
fn decode(bytes: &[u8], cut: usize) -> Result<Vec<Event>, WebSocketError> {
    let (mut decoder, mut input, mut events, mut message) =
        (Decoder::default(), Vec::new(), Vec::new(), Vec::new());
    for piece in bytes.chunks(cut) {
        input.extend_from_slice(piece);
        while let Some(event) = decoder.next(&mut input)? {
            match event {
                Event::Data { first, bytes, last } => {
                    assert_eq!(first, message.is_empty() && first);
                    message.extend(bytes);
                    if last {
                        let bytes = std::mem::take(&mut message);
                        events.push(Event::Data { first: true, bytes, last });
                    }
                }
                other => events.push(other),
            }
        }
        assert!(input.len() <= cut + MAX_CONTROL + 14, "what is held is bounded");
    }
    Ok(events)
}

proptest! {
    #[test]
    fn messages_arrive_in_parts_with_pings_between(
        parts in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 0..3000), 1..5),
        mask in any::<[u8; 4]>(),
        cut in 1..700_usize,
    ) {
        let mut bytes = Vec::new();
        for (index, part) in parts.iter().enumerate() {
            let kind = if index == 0 { BINARY } else { CONTINUATION };
            bytes.extend(masked(kind, index + 1 == parts.len(), part, mask));
            bytes.extend(masked(PING, true, b"are you there?", mask));
        }
        bytes.extend(masked(CLOSE, true, &[3, 232], mask));
        let events = decode(&bytes, cut).expect("it is WebSocket");
        let messages: Vec<_> = events.iter().filter(|event| matches!(event, Event::Data { .. })).cloned().collect();
        prop_assert_eq!(messages, vec![Event::Data { first: true, bytes: parts.concat(), last: true }]);
        let pings = events.iter().filter(|event| **event == Event::Ping(b"are you there?".to_vec())).count();
        prop_assert_eq!((pings, events.last()), (parts.len(), Some(&Event::Close)));
    }

    #[test]
    fn nothing_that_arrives_is_too_much(bytes in proptest::collection::vec(any::<u8>(), 0..500), cut in 1..99_usize) {
        let _ = decode(&bytes, cut);
    }
}

#[test]
fn what_the_standard_forbids_is_refused() {
    let refused = [
        (vec![0x82, 1, 0], WebSocketError::Unmasked),
        (vec![0xc2, 0x80, 0, 0, 0, 0], WebSocketError::Reserved),
        (vec![0x83, 0x80, 0, 0, 0, 0], WebSocketError::Kind(3)),
        (vec![0x8b, 0x80, 0, 0, 0, 0], WebSocketError::Kind(11)),
        (vec![0x09, 0x80, 0, 0, 0, 0], WebSocketError::Control),
        (vec![0x89, 0xfe, 0, 200], WebSocketError::Control),
        (vec![0x80, 0x80, 0, 0, 0, 0], WebSocketError::Order),
        (
            [masked(TEXT, false, b"a", [1; 4]), masked(TEXT, true, b"b", [1; 4])].concat(),
            WebSocketError::Order,
        ),
    ];
    for (bytes, error) in refused {
        assert_eq!(decode(&bytes, 100), Err(error), "{bytes:?}");
    }
}
