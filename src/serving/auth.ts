// Who may read the page: everybody, whoever shows the token of a file, or whom the API server lets read it. Owns the answer to
// one request, and that everything that cannot be told is a refusal.
import type { RequestHandler } from 'express';
import type { BearerFile } from './bearer-token-file.ts';
import type { TokenReviewCache } from './token-review-cache.ts';

export type AccessRules = {
  readonly bearer?: BearerFile | undefined;
  readonly reviews?: TokenReviewCache | undefined;
};

export type Verdict =
  | { readonly may: true }
  | { readonly may: false; readonly status: 401 | 403 | 503; readonly why: string };

const UNAUTHENTICATED = { may: false, status: 401, why: 'want a bearer token that is valid here' } as const;

/** The token of an Authorization header, if that is one of a bearer. */
export function bearerTokenIn(header: string | undefined): string | undefined {
  return /^Bearer +([\x21-\x7e]+) *$/i.exec(header ?? '')?.[1];
}

export async function checkAccess(rules: AccessRules, header: string | undefined, path: string): Promise<Verdict> {
  const { bearer, reviews } = rules;
  if (!bearer && !reviews) return { may: true };
  const token = bearerTokenIn(header);
  if (token === undefined) return UNAUTHENTICATED;
  let unknown: string | undefined;
  try {
    if (await bearer?.matches(token)) return { may: true };
  } catch (error) {
    unknown = (error as Error).message;
  }
  try {
    const said = await reviews?.of(token, path);
    if (said === 'allowed') return { may: true };
    if (said === 'forbidden')
      return { may: false, status: 403, why: `the bearer may not get ${path} (nonResourceURLs of a ClusterRole)` };
  } catch (error) {
    unknown = `the token could not be reviewed: ${(error as Error).message}`;
  }
  return unknown === undefined ? UNAUTHENTICATED : { may: false, status: 503, why: unknown };
}

/** Lets pass who may; `onProblem` hears why somebody could not be judged. */
export function requireAuth(rules: AccessRules, onProblem: (text: string) => void): RequestHandler {
  return async (request, response, next) => {
    const verdict = await checkAccess(rules, request.headers.authorization, request.path);
    if (verdict.may) {
      next();
      return;
    }
    if (verdict.status === 503) onProblem(`the page is refused: ${verdict.why}`);
    if (verdict.status === 401) response.setHeader('WWW-Authenticate', 'Bearer realm="cotenant"');
    response.setHeader('Cache-Control', 'no-store');
    // What is wrong with our files and our API server is the log's to tell, not a stranger's to read.
    const told = verdict.status === 503 ? 'who you are cannot be found out now' : verdict.why;
    response.status(verdict.status).type('text').send(`${told}\n`);
  };
}
