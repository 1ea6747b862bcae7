mod explore;
#[test]
fn corpus_parses() {
    for (name, text) in explore::corpus::DOCUMENTS {
        match abide_core::definition::Definition::parse(text) {
            Ok(_) => {}
            Err(e) => for f in e.faults() { println!("{name}: {:?} {} {} {:?}", f.line, f.path, f.message, f.hint); }
        }
    }
}
