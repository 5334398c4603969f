// Request bodies, each read whole into memory. Bounds the memory of one body and of all bodies together: a replica that
// runs out of memory answers no request at all.
import type { IncomingMessage, ServerResponse } from 'node:http';

export type BodyLimits = {
  readonly largestBytes: number;
  /** This much of each body does not count against `sharedBytes`, so usual bodies are read whatever else is being
   * sent. */
  readonly freeBytes: number;
  /** What all bodies without an answer may hold together beyond their free bytes. */
  readonly sharedBytes: number;
  /** From the request's head to the body's last byte; absent: as long as the server allows. */
  readonly bodyMs?: number;
};

/** A body that is not read. `status` and the message are for its sender. */
export class BodyRefused extends Error {
  readonly status: 408 | 413 | 415 | 503;

  constructor(status: BodyRefused['status'], message: string) {
    super(message);
    this.status = status;
  }
}

export type ReadBody = (request: IncomingMessage, response: ServerResponse) => Promise<Buffer>;

const FIRST_BYTES = 16 * 1024;

/** Reads one body; rejects with BodyRefused. Never settles where the client goes away: there is no request to answer
 * then. */
export function createBodyReader({ largestBytes, freeBytes, sharedBytes, bodyMs }: BodyLimits): ReadBody {
  let allHeldBytes = 0;
  return (request, response) =>
    new Promise((resolve, reject) => {
      const refused = refusalByHeaders(request, largestBytes);
      if (refused !== undefined) return reject(refused);
      let body = Buffer.allocUnsafe(Math.min(FIRST_BYTES, largestBytes));
      let length = 0;
      let heldBytes = 0;
      const release = () => {
        clearTimeout(late);
        allHeldBytes -= heldBytes;
        heldBytes = 0;
      };
      response.once('close', release);
      const refuse = (error: BodyRefused) => {
        request.off('data', append).off('end', finish).pause();
        body = Buffer.alloc(0);
        release();
        reject(error);
      };
      const late = bodyMs && setTimeout(() => refuse(new BodyRefused(408, `the body took over ${bodyMs} ms`)), bodyMs);
      // One buffer that grows: chunks may be of one byte each, and cost far more than that.
      const append = (chunk: Buffer) => {
        const needed = length + chunk.length;
        if (needed > largestBytes) return refuse(tooLarge(largestBytes));
        if (needed > body.length) {
          const size = Math.min(largestBytes, Math.max(needed, 2 * body.length));
          const more = Math.max(0, size - freeBytes) - heldBytes;
          if (allHeldBytes + more > sharedBytes)
            return refuse(new BodyRefused(503, 'too many large bodies at once; send it again'));
          allHeldBytes += more;
          heldBytes += more;
          const grown = Buffer.allocUnsafe(size);
          body.copy(grown, 0, 0, length);
          body = grown;
        }
        chunk.copy(body, length);
        length = needed;
      };
      const finish = () => {
        clearTimeout(late);
        resolve(body.subarray(0, length));
      };
      request.on('data', append).once('end', finish);
    });
}

function refusalByHeaders({ headers }: IncomingMessage, largestBytes: number): BodyRefused | undefined {
  const encoding = headers['content-encoding'] ?? 'identity';
  if (encoding.toLowerCase() !== 'identity') return new BodyRefused(415, 'unsupported: the body is compressed');
  return Number(headers['content-length'] ?? 0) > largestBytes ? tooLarge(largestBytes) : undefined;
}

const tooLarge = (largestBytes: number) => new BodyRefused(413, `the body is larger than ${largestBytes} bytes`);
