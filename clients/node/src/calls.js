// Promises that come to an end: in time, or when a signal aborts.

// Longest time that setTimeout() knows: 24 days.
export const LONGEST = 2 ** 31 - 1

// The promise, or the error `late()` makes when the time is over, or what the signal aborts with. What the promise
// comes to afterwards is the caller's.
export function within(promise, limit, late, signal) {
  promise.catch(() => {})
  return new Promise((resolve, reject) => {
    let timer = null
    const end = (settle, value) => {
      clearTimeout(timer)
      signal?.removeEventListener('abort', abort)
      settle(value)
    }
    const abort = () => end(reject, signal.reason)
    if (signal?.aborted) return abort()
    signal?.addEventListener('abort', abort)
    // Node.js rounds both ends of a timer down.
    if (limit < LONGEST) timer = setTimeout(() => end(reject, late()), Math.max(0, Math.ceil(limit) + 1))
    promise.then((value) => end(resolve, value), (error) => end(reject, error))
  })
}

// Sleep, or end with the signal's reason.
export async function pause(time, signal) {
  let timer
  const over = new Promise((resolve) => { timer = setTimeout(resolve, Math.min(time, LONGEST)) })
  try {
    await within(over, Infinity, null, signal)
  } finally {
    clearTimeout(timer)
  }
}

// One signal for all that can interrupt a call.
export class Call {
  #controller = new AbortController()
  #sources

  constructor(...signals) {
    this.#sources = signals.filter((signal) => signal !== undefined).map((signal) => {
      const abort = () => this.#controller.abort(signal.reason)
      if (signal.aborted) abort()
      signal.addEventListener('abort', abort)
      return () => signal.removeEventListener('abort', abort)
    })
  }

  get signal() {
    return this.#controller.signal
  }

  end() {
    for (const remove of this.#sources) remove()
  }
}
