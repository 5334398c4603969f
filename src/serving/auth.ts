// Access to the exporter's pages: open, by the token of a file, or by the API server's review of a token. Whatever
// cannot be decided is refused.
import type { IncomingHttpHeaders } from 'node:http';
import type { RequestHandler } from 'express';
import { STATUS_TOKEN_HEADER } from '../api/names.ts';
import type { BearerFile } from './bearer-token-file.ts';
import type { TokenReviewCache } from './token-review-cache.ts';

export type AccessRules = {
  readonly bearer?: BearerFile | undefined;
  readonly reviews?: TokenReviewCache | undefined;
};

type Verdict = { readonly may: true } | { readonly may: false; readonly status: 401 | 403 | 503; readonly why: string };

const UNAUTHENTICATED = { may: false, status: 401, why: 'want a valid bearer token' } as const;

/** The token of an Authorization header, where it is a bearer token. */
export function bearerTokenIn(header: string | undefined): string | undefined {
  return /^Bearer +([\x21-\x7e]+) *$/i.exec(header ?? '')?.[1];
}

export async function checkAccess(rules: AccessRules, token: string | undefined, path: string): Promise<Verdict> {
  const { bearer, reviews } = rules;
  if (!bearer && !reviews) return { may: true };
  if (token === undefined) return UNAUTHENTICATED;
  let undecided: string | undefined;
  try {
    if (await bearer?.matches(token)) return { may: true };
  } catch (error) {
    undecided = (error as Error).message;
  }
  try {
    const reviewed = await reviews?.of(token, path);
    if (reviewed === 'allowed') return { may: true };
    if (reviewed === 'forbidden') {
      const why = `the token's user may not GET ${path}; a ClusterRole with this nonResourceURL allows it`;
      return { may: false, status: 403, why };
    }
  } catch (error) {
    undecided = `the token could not be reviewed: ${(error as Error).message}`;
  }
  return undecided === undefined ? UNAUTHENTICATED : { may: false, status: 503, why: undecided };
}

/** The token of a request: in the header of our own, which the API server's proxy passes on, or as a bearer token. */
function tokenOf({ [STATUS_TOKEN_HEADER]: own, authorization }: IncomingHttpHeaders): string | undefined {
  return own === undefined ? bearerTokenIn(authorization) : bearerTokenIn(`Bearer ${own}`);
}

/** Passes on requests that may; `onProblem` gets the reason of each request that could not be decided. */
export function requireAuth(rules: AccessRules, onProblem: (text: string) => void): RequestHandler {
  return async (request, response, next) => {
    const verdict = await checkAccess(rules, tokenOf(request.headers), request.path);
    if (verdict.may) {
      next();
      return;
    }
    if (verdict.status === 503) onProblem(`a request was refused: ${verdict.why}`);
    if (verdict.status === 401) response.setHeader('WWW-Authenticate', 'Bearer realm="cotenant"');
    response.setHeader('Cache-Control', 'no-store');
    // Faults of our files and of the API server go to the log, not to clients.
    const text = verdict.status === 503 ? 'your token cannot be checked now; try again' : verdict.why;
    response.status(verdict.status).type('text').send(`${text}\n`);
  };
}
