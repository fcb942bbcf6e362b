import react from '@vitejs/plugin-react';

// scenes asks for react-router-dom-v5-compat, which is the same thing under another name; runtime lags behind ui by a few
// exports that nothing here uses (shimMissingExports).
export default {
  base: './',
  plugins: [react()],
  define: { 'process.env.NODE_ENV': '"production"', 'process.env': '{}', global: 'globalThis' },
  resolve: {
    alias: { 'react-router-dom-v5-compat': 'react-router-dom' },
    dedupe: ['react', 'react-dom', 'rxjs', '@grafana/data', '@grafana/runtime', '@grafana/ui'],
  },
  build: {
    target: 'esnext',
    minify: false,
    sourcemap: false,
    chunkSizeWarningLimit: 99999,
    rollupOptions: { shimMissingExports: true },
  },
};
