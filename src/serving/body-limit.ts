// Bodies of requests, each read whole into memory. Owns how much memory they may take, one and all together: whoever reaches
// the port can send, and a replica that runs out of memory answers nobody.
import type { IncomingMessage } from 'node:http';
import type { RequestHandler } from 'express';

export type BodyLimits = {
  readonly largestBytes: number;
  /** Of each body, this much is not counted below: reviews of usual size are answered whatever else is being sent. */
  readonly freeBytes: number;
  /** For what is above that, of all bodies that have not been answered. */
  readonly sharedBytes: number;
};

/** A body that is not read. `status` and the message are for its sender. */
export class BodyRefused extends Error {
  readonly status: 413 | 415 | 503;

  constructor(status: 413 | 415 | 503, message: string) {
    super(message);
    this.status = status;
  }
}

const FIRST_BYTES = 16 * 1024;

/** Puts a Buffer into `request.body`, or passes a BodyRefused on. A body that is cut off goes nowhere: nobody waits for it. */
export function bodyReader({ largestBytes, freeBytes, sharedBytes }: BodyLimits): RequestHandler {
  let sharedHeld = 0;
  return (request, response, next) => {
    const why = unreadable(request, largestBytes);
    if (why !== undefined) {
      next(why);
      return;
    }
    let body = Buffer.allocUnsafe(Math.min(FIRST_BYTES, largestBytes));
    let length = 0;
    let held = 0;
    const letGo = () => {
      sharedHeld -= held;
      held = 0;
    };
    response.once('close', letGo);
    const refuse = (error: BodyRefused) => {
      request.off('data', take).off('end', finish).pause();
      body = Buffer.alloc(0);
      letGo();
      next(error);
    };
    // One buffer that grows, since chunks may be of one byte each, and cost far more than that.
    const take = (chunk: Buffer) => {
      const needed = length + chunk.length;
      if (needed > largestBytes) {
        refuse(tooLarge(largestBytes));
        return;
      }
      if (needed > body.length) {
        const size = Math.min(largestBytes, Math.max(needed, 2 * body.length));
        const more = Math.max(0, size - freeBytes) - held;
        if (sharedHeld + more > sharedBytes) {
          refuse(new BodyRefused(503, 'too many large bodies at once; send it again'));
          return;
        }
        sharedHeld += more;
        held += more;
        const grown = Buffer.allocUnsafe(size);
        body.copy(grown, 0, 0, length);
        body = grown;
      }
      chunk.copy(body, length);
      length = needed;
    };
    const finish = () => {
      request.body = body.subarray(0, length);
      next();
    };
    request.on('data', take).once('end', finish);
  };
}

/** What its headers say already. */
function unreadable({ headers }: IncomingMessage, largestBytes: number): BodyRefused | undefined {
  const encoding = headers['content-encoding'] ?? 'identity';
  if (encoding.toLowerCase() !== 'identity') return new BodyRefused(415, 'unsupported: the body is compressed');
  return Number(headers['content-length'] ?? 0) > largestBytes ? tooLarge(largestBytes) : undefined;
}

const tooLarge = (largestBytes: number) => new BodyRefused(413, `the body is larger than ${largestBytes} bytes`);
