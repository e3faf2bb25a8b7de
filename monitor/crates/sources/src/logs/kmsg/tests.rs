use std::collections::VecDeque;

use super::*;

/// Gives one record for each read, or fails.
struct Device(VecDeque<Result<String, i32>>);

impl Read for Device {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self.0.pop_front() {
            Some(Ok(record)) => record.as_bytes().read(buffer),
            Some(Err(errno)) => Err(io::Error::from_raw_os_error(errno)),
            None => Err(io::Error::from_raw_os_error(libc::EAGAIN)),
        }
    }
}

fn messages(records: &[Result<&str, i32>]) -> Messages<Device> {
    Messages::new(Device(records.iter().map(|record| record.map(str::to_owned)).collect()))
}

#[test]
fn a_record_is_parsed_by_its_format() {
    let text = b"6,339,5140900,-,caller=T7;NET: Registered protocol family 10; again\n SUBSYSTEM=acpi\n DEVICE=+acpi:PNP0A03:00\n";
    assert_eq!(
        parse(text),
        Some(Record {
            facility: 0,
            seq: 339,
            is_fragment: false,
            text: "NET: Registered protocol family 10; again"
        })
    );
    assert_eq!(parse(b"30,1,2,-;systemd[1]: Started.\n").map(|record| record.facility), Some(3));
    assert!(parse(b"4,7,9,c;begins\n").unwrap().is_fragment);
    assert!(parse(b"4,7,9,+;goes on\n").unwrap().is_fragment);
    assert!(parse(b"6,1,2;of before Linux 3.5\n").is_some());
    for bad in [&b""[..], b"6", b"6,1,2,-", b"x,1,2,-;a", b"6,x,2,-;a", b"6,1,x,-;a", b"6,1,2,-;\xff"] {
        assert_eq!(parse(bad), None, "{}", String::from_utf8_lossy(bad));
    }
}

#[test]
fn any_bytes_are_a_record_or_none() {
    let mut number = 7_u64;
    for _ in 0..20_000 {
        let mut next = || {
            number = number.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            usize::try_from(number >> 33).unwrap()
        };
        let bytes: Vec<u8> = (0..next() % 24).map(|_| b"0123456789,,,;;-c+\n \xffa"[next() % 22]).collect();
        if let Some(record) = parse(&bytes) {
            assert!(!record.text.contains('\n'));
        }
    }
}

#[test]
fn only_the_kernels_own_messages_are_lines_and_fragments_are_put_together() {
    let mut messages = messages(&[
        Ok("6,10,1,-;first\n"),
        Ok("14,11,1,-;written by a program\n"),
        Ok("4,12,1,c;INFO: task \n"),
        Ok("4,13,1,+;umount:7\n"),
        Ok("4,14,1,-;another\n"),
        Ok("4,15,1,c;the last\n"),
    ]);
    let looked = messages.look(100);
    assert_eq!(looked.lines, ["first", "INFO: task umount:7", "another", "the last"]);
    assert_eq!((looked.lost, looked.malformed, looked.is_over), (0, 0, false));
    assert_eq!(messages.look(100), Looked::default());
}

#[test]
fn records_that_were_overwritten_are_counted_by_their_numbers() {
    let mut messages =
        messages(&[Ok("6,10,1,-;a\n"), Err(libc::EPIPE), Ok("6,15,1,-;b\n"), Ok("6,16,1,-;c\n")]);
    let looked = messages.look(100);
    assert_eq!((looked.lines.len(), looked.lost), (3, 4));
    assert_eq!(messages.look(100).lost, 0);
}

#[test]
fn so_many_are_read_at_once_and_no_more_after_the_end() {
    let records: Vec<String> = (0..10).map(|seq| format!("6,{seq},1,-;{seq}\n")).collect();
    let records: Vec<Result<&str, i32>> = records.iter().map(|record| Ok(record.as_str())).collect();
    let mut some = messages(&records);
    assert_eq!(some.look(4).lines, ["0", "1", "2", "3"]);
    assert_eq!(some.look(100).lines.len(), 6);
    let mut broken = messages(&[Ok("nothing"), Err(libc::EINVAL), Err(libc::EIO), Ok("6,1,1,-;a\n")]);
    let looked = broken.look(100);
    assert_eq!((looked.lines.len(), looked.malformed, looked.is_over), (0, 2, true));
}

/// The real device: what this test writes there is of a program, and is no line.
#[test]
fn what_programs_write_to_the_kernels_log_is_left_out() {
    let takes_any = std::fs::read_to_string("/proc/sys/kernel/printk_devkmsg");
    if !takes_any.is_ok_and(|takes| takes.trim() != "off") {
        return;
    }
    let Ok(device) = open(Path::new("/dev/kmsg")) else { return };
    let mark = format!("kevtmon test {}", std::process::id());
    if std::fs::write("/dev/kmsg", format!("<6>INFO: task {mark} blocked \n")).is_err() {
        return;
    }
    let mut messages = Messages::new(device);
    let looked = messages.look(10_000);
    assert!(messages.next.is_some(), "it was read: {looked:?}");
    assert!(looked.lines.iter().all(|line| !line.contains(&mark)), "{:?}", looked.lines);
}
