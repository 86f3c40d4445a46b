use super::*;
#[test]
fn show() {
    for t in [
        "a: 1\na: 2\n",
        "a: [1\nb: 2",
        "a: b: c",
        "a:\n\t- b",
        &"[".repeat(100000),
        "a: &x [*x]",
        "x: .nan",
        "---\na: 0644\nb: yes\nc: on\nd: 08\n...\n# hi\n---\n---\n{e: 1}",
        "? ? ? a",
        "!!binary a",
        "a: 1e3\nb: 012:30\nc: ~\n1: x\nf: y",
        "a: |\n  x\n--- # c\nb: 'x\n  --- \n '",
    ] {
        println!("{:?}", yaml_documents(t));
    }
}
