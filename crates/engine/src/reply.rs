//! The way of an answer to its caller. The answers of a large batch are given together: the writer wakes one caller, and
//! whoever runs first wakes the others where they are. Woken one by one by the writer, each of them took its processor away
//! from it for a moment.

use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::Thread;

use crate::request::{Answer, Error};

/// What is done with an answer that nobody takes.
pub type Untaken = Box<dyn FnOnce(Answer) + Send>;

/// Who asked, for whoever answers.
#[derive(Debug)]
pub struct Caller(Arc<Slot>);

/// Waits for it. Whoever drops this has gone away.
#[derive(Debug)]
pub struct Awaited(Arc<Slot>);

#[derive(Debug, Default)]
struct Slot(Mutex<State>);

#[derive(Default)]
struct State {
    answer: Option<Result<Answer, Error>>,
    waker: Option<Waker>,
    /// Who was answered with it and may not have been woken.
    others: Option<Together>,
    /// Nobody will answer, or nobody waits.
    nobody_answers: bool,
    nobody_waits: bool,
    untaken: Option<Untaken>,
}

impl std::fmt::Debug for State {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("State").field("answer", &self.answer).field("nobody_waits", &self.nobody_waits).finish()
    }
}

impl State {
    /// The answer that nobody will take, with what is to be done with it.
    fn left_over(&mut self) -> Option<(Untaken, Answer)> {
        if !self.nobody_waits || !matches!(self.answer, Some(Ok(_))) {
            return None;
        }
        let untaken = self.untaken.take()?;
        Some((untaken, self.answer.take()?.ok()?))
    }
}

/// Callers that have their answers and were not woken.
#[derive(Clone, Debug, Default)]
pub struct Together(Arc<Mutex<Vec<Waker>>>);

/// What is not there when somebody looks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Missing {
    NotYet,
    /// Whoever had to answer is gone.
    Never,
}

pub fn channel() -> (Caller, Awaited) {
    let slot = Arc::new(Slot::default());
    (Caller(slot.clone()), Awaited(slot))
}

impl Slot {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Caller {
    /// A caller that went away hears nothing; what it would have got goes to `Awaited::when_untaken`.
    pub fn send(self, answer: Result<Answer, Error>) {
        let (waker, left_over) = {
            let mut state = self.0.lock();
            state.answer = Some(answer);
            (state.waker.take(), state.left_over())
        };
        waker.into_iter().for_each(Waker::wake);
        left_over.into_iter().for_each(|(untaken, answer)| untaken(answer));
    }

    /// The same, and whoever runs first of those who are answered together wakes the others.
    pub fn send_with(self, answer: Result<Answer, Error>, others: &Together) {
        let (waker, left_over) = {
            let mut state = self.0.lock();
            state.answer = Some(answer);
            state.others = Some(others.clone());
            (state.waker.take(), state.left_over())
        };
        others.lock().extend(waker);
        left_over.into_iter().for_each(|(untaken, answer)| untaken(answer));
    }

    /// Whether nobody waits for the answer any more.
    pub fn is_closed(&self) -> bool {
        self.0.lock().nobody_waits
    }
}

impl Drop for Caller {
    fn drop(&mut self) {
        let waker = {
            let mut state = self.0.lock();
            state.nobody_answers = true;
            // Whoever was answered is woken with the others.
            if state.answer.is_none() { state.waker.take() } else { None }
        };
        waker.into_iter().for_each(Waker::wake);
    }
}

impl Together {
    fn lock(&self) -> MutexGuard<'_, Vec<Waker>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn wake_one(&self) {
        let waker = self.lock().pop();
        waker.into_iter().for_each(Waker::wake);
    }

    pub fn wake_all(&self) {
        let wakers = std::mem::take(&mut *self.lock());
        wakers.into_iter().for_each(Waker::wake);
    }
}

impl Awaited {
    /// Says what is done with an answer that comes when its caller has gone away, or that its caller does not take.
    #[must_use]
    pub fn when_untaken(self, untaken: Untaken) -> Awaited {
        self.0.lock().untaken = Some(untaken);
        self
    }

    /// The answer, if it is there.
    pub fn try_recv(&mut self) -> Result<Result<Answer, Error>, Missing> {
        let (found, others) = {
            let mut state = self.0.lock();
            let missing = if state.nobody_answers { Missing::Never } else { Missing::NotYet };
            (state.answer.take().ok_or(missing), state.others.take())
        };
        others.into_iter().for_each(|others| others.wake_all());
        found
    }
}

impl Awaited {
    /// For a thread that does nothing else.
    pub fn wait(mut self) -> Result<Answer, Error> {
        let waker = Waker::from(Arc::new(Waiting(std::thread::current())));
        loop {
            match Pin::new(&mut self).poll(&mut Context::from_waker(&waker)) {
                Poll::Ready(answer) => return answer,
                Poll::Pending => std::thread::park(),
            }
        }
    }
}

struct Waiting(Thread);

impl Wake for Waiting {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

impl Future for Awaited {
    /// Whoever ends without an answer has perhaps done what it was asked for.
    type Output = Result<Answer, Error>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        {
            let mut state = self.0.lock();
            if state.answer.is_none() && !state.nobody_answers {
                state.waker = Some(context.waker().clone());
                return Poll::Pending;
            }
        }
        Poll::Ready(self.try_recv().unwrap_or(Err(Error::OutcomeUnknown)))
    }
}

impl Drop for Awaited {
    fn drop(&mut self) {
        let (others, left_over) = {
            let mut state = self.0.lock();
            state.nobody_waits = true;
            (state.others.take(), state.left_over())
        };
        // It may have been woken so that it wakes them.
        others.into_iter().for_each(|others| others.wake_all());
        left_over.into_iter().for_each(|(untaken, answer)| untaken(answer));
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    #[derive(Default)]
    struct Count(AtomicUsize);

    impl Wake for Count {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }

    impl Count {
        fn woken(&self) -> usize {
            self.0.load(Ordering::SeqCst)
        }
    }

    fn poll(awaited: &mut Awaited, count: &Arc<Count>) -> Poll<Result<Answer, Error>> {
        Pin::new(awaited).poll(&mut Context::from_waker(&Waker::from(count.clone())))
    }

    /// Callers who wait and are answered together; one of them was woken.
    fn answered(callers: usize) -> (Vec<Awaited>, Arc<Count>, Together) {
        let (count, together) = (Arc::<Count>::default(), Together::default());
        let (replies, mut awaited): (Vec<Caller>, Vec<Awaited>) = (0..callers).map(|_| channel()).unzip();
        assert!(awaited.iter_mut().all(|awaited| poll(awaited, &count).is_pending()));
        replies.into_iter().for_each(|reply| reply.send_with(Ok(Answer::Counted), &together));
        together.wake_one();
        assert_eq!(count.woken(), 1);
        (awaited, count, together)
    }

    #[test]
    fn an_answer_wakes_its_caller() {
        let (reply, mut awaited) = channel();
        let count = Arc::default();
        assert!(poll(&mut awaited, &count).is_pending() && matches!(awaited.try_recv(), Err(Missing::NotYet)));
        reply.send(Ok(Answer::Counted));
        assert_eq!(count.woken(), 1);
        assert!(matches!(poll(&mut awaited, &count), Poll::Ready(Ok(Answer::Counted))));
    }

    #[test]
    fn an_answer_that_will_not_come_wakes_its_caller_too() {
        let (reply, mut awaited) = channel();
        let count = Arc::default();
        assert!(poll(&mut awaited, &count).is_pending());
        drop(reply);
        assert_eq!(count.woken(), 1);
        assert!(matches!(poll(&mut awaited, &count), Poll::Ready(Err(Error::OutcomeUnknown))));
        assert!(matches!(awaited.try_recv(), Err(Missing::Never)));
    }

    #[test]
    fn a_thread_can_wait() {
        let (reply, awaited) = channel();
        let waiting = std::thread::spawn(|| awaited.wait());
        reply.send(Ok(Answer::Counted));
        assert!(matches!(waiting.join(), Ok(Ok(Answer::Counted))));
    }

    #[test]
    fn who_went_away_is_known() {
        let (reply, awaited) = channel();
        assert!(!reply.is_closed());
        drop(awaited);
        assert!(reply.is_closed());
        reply.send(Ok(Answer::Counted));
    }

    #[test]
    fn an_answer_that_nobody_takes_is_handed_over_once() {
        let handed_over = Arc::new(AtomicUsize::new(0));
        let count = |awaited: Awaited| {
            let handed_over = handed_over.clone();
            awaited.when_untaken(Box::new(move |_| {
                handed_over.fetch_add(1, Ordering::SeqCst);
            }))
        };
        let (reply, awaited) = channel();
        drop(count(awaited));
        reply.send(Ok(Answer::Counted));
        assert_eq!(handed_over.load(Ordering::SeqCst), 1, "its caller had gone away");
        let (reply, awaited) = channel();
        let awaited = count(awaited);
        reply.send(Ok(Answer::Counted));
        drop(awaited);
        assert_eq!(handed_over.load(Ordering::SeqCst), 2, "its caller did not take it");
        let (reply, awaited) = channel();
        let mut awaited = count(awaited);
        reply.send(Ok(Answer::Counted));
        assert!(awaited.try_recv().is_ok());
        drop(awaited);
        assert_eq!(handed_over.load(Ordering::SeqCst), 2, "its caller took it");
    }

    #[test]
    fn who_is_woken_first_wakes_the_others_once() {
        let (mut awaited, count, _) = answered(5);
        assert!(poll(&mut awaited[3], &count).is_ready());
        assert_eq!(count.woken(), 5);
        assert!(awaited.iter_mut().take(3).all(|awaited| poll(awaited, &count).is_ready()));
        assert_eq!(count.woken(), 5);
    }

    #[test]
    fn who_is_woken_first_and_goes_away_wakes_the_others_too() {
        let (mut awaited, count, _) = answered(5);
        drop(awaited.pop());
        assert_eq!(count.woken(), 5);
    }

    #[test]
    fn whoever_is_left_can_be_woken_by_others() {
        let (awaited, count, together) = answered(5);
        std::mem::forget(awaited);
        together.wake_all();
        assert_eq!(count.woken(), 5);
    }
}
