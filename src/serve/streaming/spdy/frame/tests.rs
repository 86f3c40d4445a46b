//! Frames are decoded whatever the chunk boundaries, and memory stays bounded.

use flate2::{Compress, Compression, FlushCompress};
use proptest::prelude::*;

use super::super::dictionary::dictionary;
use super::*;

fn headers() -> impl Strategy<Value = Headers> {
    proptest::collection::btree_map("[a-z]{1,12}", "[ -~]{0,40}", 0..6)
}

/// Feeds `bytes` in chunks of `cut` and joins the data of one stream.
fn decode(bytes: &[u8], cut: usize) -> Result<Vec<Event>, SpdyError> {
    let (mut decoder, mut input, mut events) = (Decoder::default(), Vec::new(), Vec::<Event>::new());
    for piece in bytes.chunks(cut.max(1)) {
        input.extend_from_slice(piece);
        while let Some(event) = decoder.next(&mut input)? {
            match (events.last_mut(), event) {
                (
                    Some(Event::Data { stream, bytes, fin }),
                    Event::Data { stream: next, bytes: more, fin: last },
                ) if *stream == next && !*fin => {
                    bytes.extend(more);
                    *fin = last;
                }
                (_, event) => events.push(event),
            }
        }
        assert!(input.len() <= MAX_CONTROL + HEADER + cut, "what is held is bounded");
    }
    Ok(events)
}

/// Compresses as a client does: with the dictionary, one zlib stream for all blocks, a flush after each.
struct Client(Compress);

impl Client {
    fn new() -> Self {
        let mut stream = Compress::new(Compression::default(), true);
        stream.set_dictionary(&dictionary()).expect("the stream is new");
        Self(stream)
    }

    fn block(&mut self, plain: &[u8]) -> Vec<u8> {
        let mut block = Vec::with_capacity(plain.len() + 256);
        self.0.compress_vec(plain, &mut block, FlushCompress::Sync).expect("there is room");
        block
    }
}

proptest! {
    #[test]
    fn frames_arrive_as_they_were_sent(
        streams in proptest::collection::vec((1..99_u32, headers(), proptest::collection::vec(any::<u8>(), 0..3000)), 1..5),
        cut in 1..700_usize,
    ) {
        let (mut writer, mut bytes, mut sent) = (HeaderWriter::default(), Vec::new(), Vec::new());
        for (stream, headers, content) in streams {
            bytes.extend(open(stream, &headers, &mut writer));
            sent.push(Event::Open { stream, fin: false, unidirectional: false, headers });
            bytes.extend(data(stream, &content, true));
            sent.push(Event::Data { stream, bytes: content, fin: true });
            bytes.extend(reply(stream, &mut writer));
            sent.push(Event::Reply { stream, fin: false });
            bytes.extend(reset(stream, RESET_REFUSED));
            sent.push(Event::Reset { stream });
            bytes.extend(ping(stream));
            sent.push(Event::Ping { id: stream });
            bytes.extend(window_update(stream, 7));
            sent.push(Event::WindowUpdate { stream, delta: 7 });
            bytes.extend(go_away(stream));
            sent.push(Event::GoAway);
        }
        prop_assert_eq!(decode(&bytes, cut), Ok(sent));
    }

    #[test]
    fn compressed_headers_are_read(all in proptest::collection::vec(headers(), 1..6)) {
        let (mut client, mut reader) = (Client::new(), HeaderReader::default());
        for headers in all {
            // The uncompressed form behind the headers of zlib and of a stored block, before the flush.
            let block = HeaderWriter::default().write(&headers);
            let plain = block[11..block.len() - 5].to_vec();
            prop_assert_eq!(reader.read(&client.block(&plain)), Ok(headers));
        }
    }

    #[test]
    fn nothing_that_arrives_is_too_much(bytes in proptest::collection::vec(any::<u8>(), 0..3000), cut in 1..500_usize, kind in 0..12_u8) {
        let _ = decode(&bytes, cut);
        let mut framed = vec![0x80, 3, 0, kind];
        framed.extend(flags_and_length(0, bytes.len()));
        framed.extend(&bytes);
        let _ = decode(&framed, cut);
        let _ = HeaderReader::default().read(&bytes);
    }
}

#[test]
fn headers_that_inflate_without_end_are_refused() {
    let block = Client::new().block(&vec![0; 10_000_000]);
    assert!(block.len() < MAX_CONTROL);
    assert_eq!(HeaderReader::default().read(&block), Err(SpdyError::HeadersTooLarge));
}

#[test]
fn oversized_control_frame_is_refused_from_its_header() {
    let mut input = vec![0x80, 3, 0, 1, 0, 0xff, 0xff, 0xff];
    assert_eq!(Decoder::default().next(&mut input), Err(SpdyError::FrameTooLarge(0xff_ffff)));
}

#[test]
fn the_initial_window_is_found_among_the_settings() {
    let mut payload = 2_u32.to_be_bytes().to_vec();
    payload.extend([0, 0, 0, 4, 0, 0, 0, 100]);
    payload.extend([0, 0, 0, 7, 0, 1, 0, 0]);
    let frame = control(SETTINGS, 0, &payload);
    assert_eq!(decode(&frame, 3), Ok(vec![Event::InitialWindow { size: 65_536 }]));
}
